"""Frames through a pipe, however they are cut."""
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
from virga import _frames  # noqa: E402

SENT = [(_frames.CALL, 1, 2, b""), (_frames.OUT, 0, 0, b"text\n"), (_frames.RESULT, 7, 0, os.urandom(700000)), (_frames.HELLO, 0, 0, b"x")]


class Frames(unittest.TestCase):
    def setUp(self):
        self.r, self.w = os.pipe()
        self.addCleanup(os.close, self.r)

    def send(self, data, piece):
        def run():
            for at in range(0, len(data), piece):
                os.write(self.w, data[at:at + piece])
            os.close(self.w)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join)

    def test_frames_arrive_whole_whatever_the_pieces(self):
        data = b"".join(b"".join(_frames.frame(kind, a, b, [body])) for kind, a, b, body in SENT)
        for piece in (1 << 20, 4096, 997):
            with self.subTest(piece=piece):
                self.setUp()
                self.send(data, piece)
                reader = _frames.Reader(self.r)
                self.assertEqual([(k, a, b, bytes(body)) for k, a, b, body in iter(reader.next, None)], SENT)

    def test_without_blocking_too(self):
        data = b"".join(b"".join(_frames.frame(kind, a, b, [body])) for kind, a, b, body in SENT)
        os.set_blocking(self.r, False)
        reader, got = _frames.Reader(self.r), []
        self.assertEqual(reader.ready(), [])
        self.send(data, 5000)
        while not reader.ended:
            got += reader.ready()
        self.assertEqual([(k, a, b, bytes(body)) for k, a, b, body in got], SENT)

    def test_an_end_in_the_middle_is_an_end(self):
        self.send(b"".join(_frames.frame(_frames.CALL, body=[b"abc"]))[:-1], 100)
        self.assertIsNone(_frames.Reader(self.r).next())

    def test_what_is_not_a_frame_is_refused(self):
        good = _frames.frame(_frames.CALL)[0]
        for bad in (b"x" * len(good), good[:4] + b"\xff" + good[5:], good[:-1] + b"\xff"):
            with self.assertRaises(_frames.BadFrame):
                _frames.parse(bad)

    def test_writing_many_small_buffers(self):
        parts = [bytes([n % 256]) * (n % 7) for n in range(500)]
        thread = threading.Thread(target=lambda: (_frames.write_all(self.w, parts), os.close(self.w)))
        thread.start()
        with os.fdopen(os.dup(self.r), "rb") as f:
            self.assertEqual(f.read(), b"".join(parts))
        thread.join()


if __name__ == "__main__":
    unittest.main()
