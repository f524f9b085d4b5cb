"""What is known of each broker release, against the release notes (as gathered in the project's design)."""

from __future__ import annotations

import pickle

import pytest

from rabbit_chx import Release, Store
from tests.unit.complaints import complaint


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3.10.8", (3, 10, 8)),
        ("4.3.0", (4, 3, 0)),
        ("4.3.6-rc.1", (4, 3, 6)),  # what `rabbitmqctl version` prints of builds that are no releases
        ("4.3.6+dirty", (4, 3, 6)),
        ("3.13.7~alpha", (3, 13, 7)),
    ],
)
def test_a_release_is_read_from_its_number(text: str, numbers: tuple[int, int, int]) -> None:
    release = Release.parse(text)
    assert (release.major, release.minor, release.patch) == numbers
    assert str(release) == "{}.{}.{}".format(*numbers)


def test_two_numbers_mean_the_newest_known_patch_release() -> None:
    assert (Release.parse("4.3").major, Release.parse("4.3").minor) == (4, 3)
    assert Release.parse("4.3").patch >= 6
    assert Release.parse("3.13").patch >= 7
    assert Release.parse("3.10") == Release.parse(str(Release.parse("3.10")))


def test_a_patch_release_yet_to_come_routes_like_its_series() -> None:
    assert not Release.parse("4.3.99").empty_list_fails


@pytest.mark.parametrize(
    ("reported", "read"),
    [
        ("4.3.6", "4.3.6"),
        ("3.13.7-rc.1", "3.13.7"),
        ("4.4.0+alpha", "4.4.0"),  # not mirrored yet
        ("5.1", "5.1.0"),
        ("3.7.28", "3.7.28"),
        *((text, "0.0.0") for text in ("", "unknown", "\u0664.\u0663.\u0660")),
    ],
)
def test_the_release_of_a_broker_need_not_be_mirrored(reported: str, read: str) -> None:
    assert str(Release._of_broker(reported)) == read


NO_RELEASES = [
    *("", "4", "4.", "4.3.", "4.3.x", "04.3", "4.03", "4.3.06", "4.3.6.1", " 4.3", "4.3 ", "4.3\n", "v4.3.6"),
    *("latest", "4,3", "-4.3", "4.-3", "\u0664.\u0663", "\uff14.\uff13"),  # digits that are not ASCII
    *(b"4.3", 4.3, 4, None, True, (4, 3), ["4.3"]),
]


@pytest.mark.parametrize("text", NO_RELEASES)
def test_what_is_no_release_number_is_refused(text: object) -> None:
    error = complaint(lambda: Release.parse(text))  # type: ignore[arg-type]
    assert error.what == "broker release"
    assert error.got is text
    assert "4.3" in error.expected
    assert "rabbitmqctl version" in error.hint


@pytest.mark.parametrize(
    "text", ["2.8", "2.8.7", "3.7.28", "3.14", "4.4", "4.10.1", "9.0", "0.0", "99.99.999"]
)
def test_a_series_that_was_never_looked_at_is_refused_and_the_known_ones_are_named(text: str) -> None:
    error = complaint(lambda: Release.parse(text))
    assert error.got == text
    assert "3.8, 3.9, 3.10, 3.11, 3.12, 3.13, 4.0, 4.1, 4.2, 4.3" in error.expected
    assert "parity" in error.hint


# Khepri came as an option with 3.13, is the default of new clusters from 4.2 on, and the only store from 4.3 on.
@pytest.mark.parametrize(
    ("series", "stores"),
    [
        ("3.8", "m"),
        ("3.10", "m"),
        ("3.12", "m"),
        ("3.13", "mk"),
        ("4.0", "mk"),
        ("4.1", "mk"),
        ("4.2", "km"),
        ("4.3", "k"),
    ],
)
def test_each_series_has_its_stores_the_default_first(series: str, stores: str) -> None:
    possible = [{"m": Store.MNESIA, "k": Store.KHEPRI}[letter] for letter in stores]
    assert Release.parse(series).store is possible[0]
    for store in Store:
        if store in possible:
            assert Release.parse(series, store=store).store is store
            assert Release.parse(series, store=store.value).store is store
        else:
            error = complaint(lambda store=store: Release.parse(series, store=store))
            assert error.got == store.value
            assert error.expected == possible[0].value
            assert series in error.what


@pytest.mark.parametrize("store", ["", "Mnesia", "KHEPRI", "ets", 1, b"khepri", ["khepri"], Store])
def test_what_is_no_store_is_refused(store: object) -> None:
    error = complaint(lambda: Release.parse("4.0", store=store))  # type: ignore[arg-type]
    assert error.expected == "mnesia or khepri"


def test_a_release_is_taken_for_itself_and_can_be_given_another_store() -> None:
    mnesia = Release.parse("4.0.5")
    assert Release.parse(mnesia) is mnesia
    khepri = Release.parse(mnesia, store="khepri")
    assert (khepri.store, str(khepri)) == (Store.KHEPRI, "4.0.5")
    complaint(lambda: Release.parse(Release.parse("3.12.1"), store="khepri"))


@pytest.mark.parametrize(
    ("fact", "true_of", "false_of"),
    [
        ("typed_headers", "3.8.35 3.10.8 3.12.0 3.12.14", "3.13.0 3.13.7 4.0.5 4.3.6"),
        ("missing_header_fails", "3.13.0 3.13.6", "3.10.8 3.12.14 3.13.7 4.0.0 4.3.6"),
        ("empty_list_fails", "3.13.0 3.13.7 4.0.5 4.2.9 4.3.0 4.3.4", "3.8.35 3.12.14 4.3.5 4.3.6"),
        (
            "first_binding_wins",
            "3.9.21 3.9.29 3.10.6 3.10.8 3.11.0 3.12.0 4.3.6",
            "3.8.35 3.9.20 3.10.0 3.10.5",
        ),
        ("unbind_spares_duplicates", "4.3.0 4.3.4 4.3.6", "3.8.35 3.10.8 4.0.5 4.2.9"),
        ("deleted_exchange_keeps_buckets", "4.3.0 4.3.4", "3.10.8 4.0.5 4.2.9 4.3.6"),
        ("modulus_sorts_destinations", "4.3.0 4.3.6", "3.8.35 3.10.8 4.0.5 4.2.9"),
    ],
)
def test_facts_change_with_the_release_that_changed_them(fact: str, true_of: str, false_of: str) -> None:
    assert [text for text in true_of.split() if not getattr(Release.parse(text), fact)] == []
    assert [text for text in false_of.split() if getattr(Release.parse(text), fact)] == []


def test_releases_are_values() -> None:
    release = Release.parse("4.0.5", store="khepri")
    assert {release: 1}[Release.parse("4.0.5", store="khepri")] == 1
    assert release != Release.parse("4.0.5")
    assert pickle.loads(pickle.dumps(release)) == release
    with pytest.raises(AttributeError):
        release.patch = 6  # type: ignore[misc]
