"""Listening sockets, and what is said where there can be none. The standard library only."""

import socket

from transom.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or ConfigError. Early, so that a taken port costs nobody a model's loading."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ConfigError(_cannot_listen(host, port, error)) from None
    sock.setblocking(False)
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    advice = "; choose another with --port" if port else ""
    return f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}{advice}"


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
