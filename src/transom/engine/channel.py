"""The channel between server and engine: one stream socket, and messages as frames in it.

A frame is a length, four bytes, little endian, and so many bytes of msgpack. The socket is one of a pair, and
the other of the pair is the engine's standard input from its birth: no name, no directory, nobody else. The
end of either process, by whatever cause, is end of file to the other.
"""

import contextlib
import socket

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 1 << 28
"""Far above any prompt; a length beyond it is not a length."""
READ_BYTES = 1 << 16


def frame(body: bytes) -> bytes:
    assert len(body) <= FRAME_BYTES_MAX, f"a message of {len(body)} bytes"
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class Frames:
    """Cuts a stream of bytes into its frames' bodies. Mutable: keeps the frame that has not all come."""

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
        del self._pending[:start]
        return bodies


class Channel:
    """Owns one end of the socket, and what the other side has not taken yet. Mutable; only `close` waits."""

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
        """Bytes kept for the next `flush`, which is due when the socket is writable."""
        return len(self._unsent)

    @property
    def ended(self) -> bool:
        """Whether the other side is gone and its last words have been received."""
        return self._ended

    def send(self, body: bytes) -> None:
        """Send, after all that was sent before, or keep what the socket does not take now."""
        self._unsent += frame(body)
        self.flush()

    def flush(self) -> None:
        """Send as much of what is kept as the socket takes."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except ConnectionError:
            # Nobody reads any more. That is for `receive` to find, after what is still to be read.
            self._unsent.clear()

    def receive(self) -> list[bytes]:
        """Everything that has arrived whole. Sets `ended` at the end of file.

        Always reads on until there is nothing: of an other side that died with words of ours unread, uvloop
        tells a reader just once.
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
        except ConnectionResetError:
            return b""

    def close(self, patience_seconds: float = 0.0) -> None:
        """The other side's end of file; before it, for so long, whatever is still unsent."""
        with self._socket, contextlib.suppress(OSError):
            self._socket.settimeout(patience_seconds)
            self._socket.sendall(self._unsent)
