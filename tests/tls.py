"""A private certificate authority, and a listener that terminates TLS in front of a server without TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from tests.programs import ran

# The text depends on whether the server sends its CA certificate.
UNKNOWN_AUTHORITY = ("unable to get local issuer certificate", "self-signed certificate in certificate chain")


class Authority:
    """A folder with two CAs and the certificates that they have signed, as NAME.pem and NAME.key."""

    def __init__(self, folder, hosts):
        self.folder = folder
        self._hosts = hosts
        for ca in ("ca", "other-ca"):
            signs = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # which Python 3.13 requires
            made = ("-subj", f"/CN={ca}", *self._new_key(ca), "-out", f"{ca}.pem")
            self._openssl("req", "-x509", "-days", "2", *signs, *made)

    def issue(self, name, *, names=None, days=2, ca="ca"):
        self._openssl("req", "-subj", f"/CN={name}", *self._new_key(name), "-out", f"{name}.csr")
        extensions = (f"subjectAltName={names or self._hosts}", "authorityKeyIdentifier=keyid")
        (self.folder / "ext").write_text("\n".join(extensions))
        signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", str(days))
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-extfile", "ext", "-out", f"{name}.pem")

    def lock(self, name, passphrase):
        """Write an encrypted copy of a key as locked.key."""
        locked = ("-aes128", "-passout", f"pass:{passphrase}", "-out", "locked.key")
        self._openssl("pkey", "-in", f"{name}.key", *locked)

    def context(self, *, ca="ca", client="client"):
        """The context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=self.folder / f"{ca}.pem")
        if client:
            context.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        return context

    def server(self, name="good", *, clients=ssl.CERT_OPTIONAL):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.folder / "ca.pem")
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        context.verify_mode = clients
        return context

    def _new_key(self, name):
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")

    def _openssl(self, *arguments):
        done = ran(["openssl", *arguments], cwd=self.folder)
        assert done.returncode == 0, done.stderr


class Listener:
    """Accepts TLS on its own port and forwards the contents to a URL's server; `clients` has the names in certificates."""

    def __init__(self, context, url):
        parts = urlsplit(url)
        self._context, self._server = context, (parts.hostname, parts.port)
        self.clients = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._socket.close()

    def _serve(self):
        with suppress(OSError):
            while True:
                plain, _ = self._socket.accept()
                threading.Thread(target=self._handle, args=(plain,), daemon=True).start()

    def _handle(self, plain):
        # The client reads the alert only if everything that it sent is read before the connection is closed.
        with plain.dup() as raw, suppress(OSError):
            try:
                client = self._context.wrap_socket(plain, server_side=True)
            except ssl.SSLError:
                raw.shutdown(socket.SHUT_WR)
                raw.settimeout(30)
                while raw.recv(65536):
                    pass
                return
            with client:
                self._forward(client)

    def _forward(self, client):
        subject = dict(pair for (pair,) in (client.getpeercert() or {}).get("subject", ()))
        self.clients.append(subject.get("commonName"))
        with socket.create_connection(self._server) as server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join(5)


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
