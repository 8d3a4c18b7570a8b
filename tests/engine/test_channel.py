"""Frames, the channel between two sockets, and the engine's mailbox over it: no process, no event loop."""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop

from transom import wire
from transom.engine.channel import FRAME_BYTES_MAX, Channel, Frames, frame
from transom.engine.process import Mailbox, Stop
from transom.values import RequestId

LARGE_BYTES = 1 << 20
"""More than a socket buffers without a reader."""


@contextmanager
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, other = map(Channel, socket.socketpair())
    try:
        yield one, other
    finally:
        one.close()
        other.close()


@contextmanager
def mailbox() -> Iterator[tuple[Channel, Mailbox]]:
    """The server's end and the engine's mailbox."""
    with pair() as (server, engine):
        yield server, Mailbox(engine)


def abort(number: int) -> bytes:
    return wire.encode(wire.Abort(RequestId(number)))


def flushed(number: int) -> wire.Done:
    return wire.Done(number)


def test_a_stream_cut_anywhere_gives_the_same_bodies() -> None:
    bodies = [b"", b"a", b"bc" * 200, b"", b"end"]
    stream = b"".join(map(frame, bodies))
    for cut in range(len(stream) + 1):
        frames = Frames()
        assert frames.feed(stream[:cut]) + frames.feed(stream[cut:]) == bodies
    frames = Frames()
    assert [body for i in range(len(stream)) for body in frames.feed(stream[i : i + 1])] == bodies


def test_lengths_are_four_bytes_little_endian() -> None:
    assert frame(b"x" * 258) == b"\x02\x01\x00\x00" + b"x" * 258


def test_an_absurd_length_is_refused_at_once() -> None:
    with pytest.raises(AssertionError, match="a frame of"):
        Frames().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "little"))


def test_bytes_that_the_socket_does_not_take_are_kept_in_order_without_blocking() -> None:
    bodies = [bytes([i]) * LARGE_BYTES for i in range(4)] + [b"small"]
    with pair() as (one, other):
        for body in bodies:
            one.send(body)
        assert one.unsent > 3 * LARGE_BYTES
        got: list[bytes] = []
        while one.unsent:
            got += other.receive()
            one.flush()
        assert got + other.receive() == bodies
        assert not other.ended


def test_both_directions_may_be_full_at_once() -> None:
    with pair() as (one, other):
        one.send(b"1" * LARGE_BYTES)
        other.send(b"2" * LARGE_BYTES)
        got: tuple[list[bytes], list[bytes]] = ([], [])
        while not all(got):
            for mine, side in zip(got, (one, other), strict=True):
                side.flush()
                mine.extend(side.receive())
        assert got == ([b"2" * LARGE_BYTES], [b"1" * LARGE_BYTES])


def test_closing_with_patience_waits_for_a_reader() -> None:
    """With patience, all unsent bytes arrive before the end of file."""
    with pair() as (one, other):
        one.send(b"x" * LARGE_BYTES)

        async def read() -> list[bytes]:
            closing = asyncio.ensure_future(asyncio.to_thread(one.close, 60))
            got: list[bytes] = []
            while not other.ended:
                got += other.receive()
                await asyncio.sleep(0)
            await closing
            return got

        assert asyncio.run(read()) == [b"x" * LARGE_BYTES]


def test_a_stream_that_ends_inside_a_frame_gives_the_complete_frames_and_then_ends() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(frame(b"whole") + frame(b"cut off")[:-1])
    channel = Channel(ours)
    assert channel.receive() == [b"whole"]
    assert channel.ended
    channel.close()


def test_the_last_messages_are_read_although_sending_fails_and_ours_were_never_read() -> None:
    with pair() as (one, other):
        one.send(b"unread")
        other.send(b"last words")
        other.close()
        one.send(b"never received")
        assert not one.unsent
        assert one.receive() == [b"last words"]
        assert one.ended


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("unread", [b"unread", b"x" * LARGE_BYTES], ids=["read", "read and written"])
def test_every_event_loop_reports_the_end_of_a_peer_that_left_our_bytes_unread(
    run: Callable[..., None], unread: bytes
) -> None:
    """uvloop calls a reader only once for an error condition."""

    async def body(one: Channel, other: Channel) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        got: list[bytes] = []

        def read() -> None:
            got.extend(one.receive())
            if one.ended:
                loop.remove_reader(one.fileno())
                loop.remove_writer(one.fileno())
                ended.set_result(None)

        loop.add_reader(one.fileno(), read)
        loop.add_writer(one.fileno(), one.flush)
        one.send(unread)
        other.send(b"last words")
        other.close()
        await asyncio.wait_for(ended, 30)
        assert got == [b"last words"]

    for _ in range(2):  # the second time with the same descriptor
        with pair() as (one, other):
            run(body(one, other))


# ---------------------------------------------------------------- the engine's end


def test_an_engine_with_a_server_that_does_not_read_continues_and_keeps_the_order() -> None:
    with mailbox() as (server, engine):
        sent = 0
        for sent in itertools.count(1):
            engine.send(flushed(sent))
            if engine._channel.unsent > LARGE_BYTES:
                break
        server.send(abort(7))
        assert engine.receive(None) == [wire.Abort(RequestId(7))]
        got: list[wire.FromEngine] = []
        while engine._channel.unsent:
            got += map(wire.decode_from_engine, server.receive())
            assert engine.receive(0) == []
        got += map(wire.decode_from_engine, server.receive())
        assert got == [flushed(number + 1) for number in range(sent)]


def test_a_writable_socket_is_not_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle engine must not run an iteration only because the server has read its bytes."""
    with mailbox() as (server, engine):
        engine.send(flushed(1))
        while not engine._channel.unsent:
            engine.send(flushed(1))
        waits = 0
        wait = engine._wait

        def read_instead(timeout_ms: int | None) -> set[int]:
            nonlocal waits
            waits += 1
            server.receive()
            if not engine._channel.unsent:
                server.send(abort(9))
            return wait(timeout_ms)

        monkeypatch.setattr(engine, "_wait", read_instead)
        assert engine.receive(None) == [wire.Abort(RequestId(9))]
        assert waits >= 2


def test_part_of_a_message_is_not_delivered() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        engine = Mailbox(Channel(theirs))
        whole = frame(abort(1))
        ours.sendall(whole[:3])
        assert engine.receive(0) == []
        ours.sendall(whole[3:] + whole[:5])
        assert engine.receive(None) == [wire.Abort(RequestId(1))]
        ours.sendall(whole[5:])
        assert engine.receive(None) == [wire.Abort(RequestId(1))]
        ours.close()
        assert engine.receive(None) == [Stop()]
        engine.close()


def test_stop_comes_after_the_messages_sent_before_the_end() -> None:
    with mailbox() as (server, engine):
        server.send(abort(1))
        server.close()
        assert engine.receive(None) == [wire.Abort(RequestId(1)), Stop()]


def test_any_other_readable_descriptor_means_stop() -> None:
    readable, writable = os.pipe()
    with mailbox() as (server, engine):
        engine.stop_on(readable)
        assert engine.receive(0) == []
        server.send(abort(1))
        os.write(writable, b"x")
        assert engine.receive(None) == [wire.Abort(RequestId(1)), Stop()]
    os.close(readable)
    os.close(writable)
