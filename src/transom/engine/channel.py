"""The channel between server and engine: a stream socket that carries framed messages.

A frame is the length of its body in four bytes, little endian, and the body, which is msgpack. The socket is
one of a pair; the engine inherits the other one as its standard input, so the channel has no name that other
processes could open. When either process ends, for any reason, the other one reads end of file.
"""

import contextlib
import socket

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 1 << 28
"""Far above any message. A larger length means that the stream is not made of frames."""
READ_BYTES = 1 << 16


def frame(body: bytes) -> bytes:
    assert len(body) <= FRAME_BYTES_MAX, f"a message of {len(body)} bytes"
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class Frames:
    """Splits a byte stream into the bodies of its frames. Mutable: keeps the incomplete last frame."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of all frames that `data` completes, in order."""
        self._pending += data
        bodies = []
        start, have = 0, len(self._pending)
        while have - start >= LENGTH_BYTES:
            body = start + LENGTH_BYTES
            length = int.from_bytes(self._pending[start:body], "little")
            assert length <= FRAME_BYTES_MAX, f"a frame of {length} bytes"
            if have - body < length:
                break
            start = body + length
            bodies.append(bytes(self._pending[body:start]))
        # Once per call, not per frame: each deletion moves the rest of the buffer.
        del self._pending[:start]
        return bodies


class Channel:
    """Owns one end of the socket and the bytes not yet sent. Mutable; only `close` blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._frames = Frames()
        self._unsent = bytearray()
        self._ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait for the next `flush`; the caller calls it when the socket is writable."""
        return len(self._unsent)

    @property
    def ended(self) -> bool:
        """Whether the other end is closed and everything that it sent has been received."""
        return self._ended

    def send(self, body: bytes) -> None:
        """Queue a message behind the earlier ones and send as much as the socket takes now."""
        self._unsent += frame(body)
        self.flush()

    def flush(self) -> None:
        """Send as many of the unsent bytes as the socket takes."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except ConnectionError:
            # The other process has died. `receive` reports that, after its last messages have been read.
            self._unsent.clear()

    def receive(self) -> list[bytes]:
        """The bodies of all complete messages that have arrived. Sets `ended` at end of file.

        Reads until the socket is empty: uvloop notifies a reader only once if the other process died with
        unread bytes of ours, so a second call might never come.
        """
        bodies: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while data := self._read():
                bodies += self._frames.feed(data)
            self._ended = True
        return bodies

    def _read(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except ConnectionResetError:  # the other process died with unread bytes of ours: also an end of file
            return b""

    def close(self, patience_seconds: float = 0.0) -> None:
        """Close this end, which the other side reads as end of file.

        The unsent bytes are sent first, for at most `patience_seconds`.
        """
        with self._socket, contextlib.suppress(OSError):
            self._socket.settimeout(patience_seconds)
            self._socket.sendall(self._unsent)
