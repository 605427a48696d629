from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodes.stomp import HEARTBEAT, Frame, FrameLimits, Parser, ProtocolError, StompHeartbeat, encode

header_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
headers = st.dictionaries(header_text.filter(lambda name: name not in ("", "content-length")), header_text,
                          max_size=4)
frames = st.builds(Frame, st.sampled_from(["SEND", "MESSAGE", "ERROR", "ACK"]), headers, st.binary(max_size=40))


def feed_all(parser: Parser, pieces: list[bytes]) -> tuple[list[Frame | StompHeartbeat], str]:
    """What the pieces give, and the reason if they end in a fault."""
    items: list[Frame | StompHeartbeat] = []
    try:
        for piece in pieces:
            while found := parser.feed(piece):
                piece = b""
                items += found
    except ProtocolError as fault:
        return items, str(fault)
    return items, ""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def body_of(frame: Frame) -> Frame:
    plain = {name: value for name, value in frame.headers.items() if name != "content-length"}
    return Frame(frame.command, plain, frame.body)


@given(st.lists(frames, max_size=4), st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_survive_any_cutting_of_the_stream(sent: list[Frame], places: list[int]) -> None:
    stream = b"\n".join(encode(frame) for frame in sent)
    items, fault = feed_all(Parser(), cut(stream, places))
    assert not fault
    assert [body_of(item) for item in items if isinstance(item, Frame)] == sent


@example(Frame("SEND"), b"\n")
@given(frames, st.sampled_from([b"", b"\n", b"\n\n", b"\r\n"]))
def test_a_frame_that_comes_byte_by_byte_is_the_same(sent: Frame, before: bytes) -> None:
    """Its body may begin with what would be a heart-beat elsewhere."""
    sent = replace(sent, body=before + sent.body)
    items, fault = feed_all(Parser(), [bytes([each]) for each in encode(sent)])
    assert not fault and [body_of(item) for item in items if isinstance(item, Frame)] == [sent]
    assert not any(isinstance(item, StompHeartbeat) for item in items)


noise = st.lists(st.sampled_from([b"SEND", b"CONNECT", b"\n", b"\r\n", b"\n\n", b"\0", b"a:b", b"a:\\c", b"\\t",
                                  b":", b"\r", b"content-length:3", b"xyz", b"\xff", b"content-length:x"]),
                 max_size=14).map(b"".join) | st.binary(max_size=60)


@given(noise, st.lists(st.integers(0, 10_000), max_size=6))
def test_noise_means_the_same_however_it_is_cut(data: bytes, places: list[int]) -> None:
    limits = FrameLimits(header_bytes=40, headers=3, body=10)
    whole = feed_all(Parser(limits), [data])
    pieces = feed_all(Parser(limits), cut(data, places))
    # Where a limit is exceeded and more is wrong besides, the reason may depend on what came first.
    assert [i for i in whole[0] if isinstance(i, Frame)] == [i for i in pieces[0] if isinstance(i, Frame)]
    assert bool(whole[1]) == bool(pieces[1])


def test_escapes_are_those_of_stomp_1_2() -> None:
    encoded = encode(Frame("SEND", {"a:b": "c\\d\re\nf:g"}))
    assert encoded == b"SEND\na\\cb:c\\\\d\\re\\nf\\cg\n\n\0"
    assert Parser().feed(encoded) == [Frame("SEND", {"a:b": "c\\d\re\nf:g"})]


def test_connect_is_not_escaped_and_cannot_be_split() -> None:
    frame = Frame("CONNECT", {"passcode": "a:b\\c"})
    assert encode(frame) == b"CONNECT\npasscode:a:b\\c\n\n\0"
    assert Parser().feed(encode(frame)) == [frame]
    with pytest.raises(ValueError, match="passcode"):
        encode(Frame("CONNECT", {"passcode": "x\nadmin:true"}))


def test_the_first_of_repeated_headers_counts() -> None:
    items = Parser().feed(b"SEND\nfoo:1\nfoo:2\n\n\0")
    assert items == [Frame("SEND", {"foo": "1"})]


def test_content_length_lets_a_body_hold_nul_and_its_absence_ends_it_there() -> None:
    assert Parser().feed(b"SEND\ncontent-length:3\n\na\0b\0") == [
        Frame("SEND", {"content-length": "3"}, b"a\0b")]
    assert Parser().feed(b"SEND\n\na\0\n\nACK\n\n\0") == [Frame("SEND", {}, b"a"), HEARTBEAT, Frame("ACK", {})]


def test_carriage_returns_may_end_lines() -> None:
    assert Parser().feed(b"\r\nSEND\r\na:b\r\n\r\nx\0") == [HEARTBEAT, Frame("SEND", {"a": "b"}, b"x")]


@pytest.mark.parametrize(("data", "reason"), [
    (b"GET / HTTP/1.1\r\n\r\n", "unknown command"),
    (b"SEND\nno colon\n\n\0", "malformed"),
    (b"SEND\n:nameless\n\n\0", "malformed"),
    (b"SEND\na:\\t\n\n\0", "undefined escape"),
    (b"SEND\na:b\\\n\n\0", "undefined escape"),
    (b"SEND\na:\xff\n\n\0", "UTF-8"),
    (b"SEND\na:\0b\n\n\0", "NUL"),
    (b"SEND\ncontent-length:-1\n\n\0", "not a number"),
    (b"SEND\ncontent-length:2\n\nabc\0", "no NUL"),
    (b"SEND\ncontent-length:11\n\n", "longer than 10"),
    (b"SEND\n\n" + b"x" * 11, "longer than 10"),
    (b"SEND" + b"x" * 41, "headers are longer than 40"),
    (b"SEND\na:1\nb:2\nc:3\nd:4\n\n\0", "more than 3 headers"),
])
def test_faults_are_told_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        Parser(FrameLimits(header_bytes=40, headers=3, body=10)).feed(data)


def test_an_endless_line_is_given_up_at_the_limit_not_gathered() -> None:
    parser = Parser(FrameLimits(header_bytes=1000))
    with pytest.raises(ProtocolError):
        for _ in range(101):
            parser.feed(b"a" * 10)
