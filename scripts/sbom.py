"""Add a software bill of materials to each wheel: CycloneDX JSON in `.dist-info/sboms`, as PEP 770 specifies.

It lists the package, its licence and its declared requirements, as version ranges: the versions are chosen only when the
wheel is installed. The output is reproducible: it has no timestamp and no random serial number.

It uses no library because building from source would then require that library and six more for these few lines.

Rules for this file: hatchling loads it during the build, and it reads only the metadata that hatchling provides.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE = "rabbit_chx.cdx.json"


class SbomHook(BuildHookInterface[Any]):
    """Build hook that adds the file to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file before hatchling builds a wheel, except for an editable one."""
        if version == "editable":
            return
        about = self.metadata.core
        text = sbom(
            about.name,
            self.metadata.version,
            about.license_expression,
            about.dependencies,
            about.optional_dependencies,
        )
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, FILE)
        file.write_text(text, encoding="utf-8")
        build_data["sbom_files"].append(str(file))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove it again."""
        if version != "editable":
            self.folder.cleanup()


def sbom(
    name: str, version: str, licence: str, dependencies: Sequence[str], extras: Mapping[str, Sequence[str]]
) -> str:
    """Return the bill of materials as text."""
    own = f"pkg:pypi/{name}@{version}"
    declared = [(line, Requirement(line), "") for line in dependencies]
    declared += [(line, Requirement(line), extra) for extra, lines in extras.items() for line in lines]
    found: dict[str, dict[str, Any]] = {}
    for line, requirement, extra in declared:
        needed = canonicalize_name(requirement.name)
        one = found.setdefault(
            needed,
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{needed}",
                "name": needed,
                "purl": f"pkg:pypi/{needed}",
                "scope": "optional" if extra else "required",
                "properties": [],
            },
        )
        label = f"rabbit-chx:requires[{extra}]" if extra else "rabbit-chx:requires"
        one["properties"].append({"name": label, "value": line})
    package = {
        "type": "library",
        "bom-ref": own,
        "name": name,
        "version": version,
        "licenses": [{"expression": licence}],
        "purl": own,
    }
    components = [found[needed] for needed in sorted(found)]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": package},
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": [one["bom-ref"] for one in components]},
            *({"ref": one["bom-ref"]} for one in components),
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
