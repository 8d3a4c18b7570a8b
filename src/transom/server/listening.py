"""Where the server accepts connections: a TCP port or a Unix socket, with or without TLS."""

import contextlib
import errno
import grp
import os
import pwd
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from transom.config import ServerConfig
from transom.errors import ConfigError
from transom.limits import LIMITS

SOCKET_MODE = 0o660
"""Permissions of a Unix socket: its owner and its group may connect, other users may not."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients reach the server. The text is that of logs and screens."""

    url: str
    """Over a Unix socket: the URL for curl's --unix-socket."""
    path: Path | None = None
    """The Unix socket's file."""
    host: str = ""
    """The numeric address, unless it is a Unix socket."""

    def __str__(self) -> str:
        return str(self.path or self.url)

    @property
    def is_loopback(self) -> bool:
        """Whether it is a TCP address that only programs of this machine can reach."""
        return self.path is None and ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can connect."""
        return self.path is not None or self.is_loopback

    def permissions(self) -> str:
        """Users that the file system lets connect to a Unix socket, as `mode 0660, owner a, group b`."""
        assert self.path is not None, self
        found = self.path.stat()
        owner, group = str(found.st_uid), str(found.st_gid)
        with contextlib.suppress(KeyError):  # in a container, ids need not have names
            owner, group = pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid).gr_name
        return f"mode {stat.S_IMODE(found.st_mode):04o}, owner {owner}, group {group}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket that does not block, and the certificates for its connections."""

    sock: socket.socket
    certificates: "Certificates | None" = None

    @property
    def address(self) -> Address:
        scheme = "http" if self.certificates is None else "https"
        if self.sock.family == socket.AF_UNIX:
            return Address(f"{scheme}://localhost", Path(self.sock.getsockname()))
        host, port = self.sock.getsockname()[:2]
        return Address(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", host=host)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Closes the socket at the end, and removes the file of a Unix socket if it is still this one."""
        path = self.address.path
        inode = path.stat().st_ino if path else None
        with self.sock:
            yield
        if path:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()


def listen(server: ServerConfig) -> Listener:
    """Listens as the settings say. ConfigError, of one line, if that cannot work.

    The command calls it before the model is loaded, so that a taken port is reported at once.
    """
    # The certificates come first: a Unix socket would be left behind if they failed later.
    certificates = None
    if server.ssl_certfile is not None:
        certificates = Certificates(
            Path(server.ssl_certfile), Path(server.ssl_keyfile or server.ssl_certfile)
        )
    return Listener(
        listen_unix(Path(server.uds)) if server.uds else listen_tcp(server.host, server.port), certificates
    )


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}: {reason}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(LIMITS.backlog)
    except OSError as error:
        sock.close()
        advice = "; choose another with --port" if port else ""
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}{advice}") from None
    sock.setblocking(False)
    return sock


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket with the permissions SOCKET_MODE. ConfigError if the path cannot be used.

    A socket left behind by a server that was killed is replaced. Any other file is not touched.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The file has its permissions from its first moment: a chmod after bind would leave a gap.
    umask = os.umask(0o777 & ~SOCKET_MODE)
    try:
        sock.bind(str(path))
        sock.listen(LIMITS.backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on --uds {path}: {error.strerror or error}") from None
    finally:
        os.umask(umask)
    sock.setblocking(False)
    return sock


def _remove_stale(path: Path) -> None:
    """Removes a socket that no process listens on. ConfigError if the path is taken."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"cannot listen on --uds {path}: a file that is not a socket has this name")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # A listener whose backlog is full answers EAGAIN in place of waiting.
            probe.setblocking(False)
            found = probe.connect_ex(str(path))
        if found != errno.ECONNREFUSED:
            raise ConfigError(f"cannot listen on --uds {path}: a server listens there, or may do so")
        path.unlink()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot listen on --uds {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


class Certificates:
    """A certificate chain with its private key, for TLS 1.2 and later. `reload` reads the files again.

    Connections that are open keep the certificate that they began with.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """ConfigError if the files are no certificate and its key."""
        self._certificate, self._key = certificate, key
        self.context = self._loaded()

    def __call__(self, *_: object) -> ssl.SSLContext:
        """The context in use: uvicorn asks a factory for it."""
        return self.context

    def reload(self) -> None:
        """ConfigError if the files cannot be used; then the old certificate stays."""
        # Checked apart from the context in use: a failed load leaves a context without a key.
        self._loaded()
        self._load_into(self.context)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            for path in (self._certificate, self._key):
                path.open("rb").close()  # OpenSSL's error would not say which of the files is missing
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except ssl.SSLError as error:
            raise ConfigError(
                f"--ssl-certfile {self._certificate}, --ssl-keyfile {self._key}: not a certificate and its "
                f"private key in PEM without a passphrase: {error.reason or error}"
            ) from None
        except (OSError, ValueError) as error:
            path = getattr(error, "filename", None) or self._certificate
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"TLS: {path}: cannot be read: {reason}") from None
