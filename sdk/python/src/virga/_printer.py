"""What workers print, as the caller sees it."""
from __future__ import annotations

import sys
import threading
from typing import Callable, Dict, Optional, Tuple

Show = Callable[[str, str], None]  # ("stdout" or "stderr", a line)


class Printer:
    """What workers print, in whole lines, so that those of several do not mix."""

    def __init__(self, show: Optional[Show]) -> None:
        self.show = show
        self.lock = threading.Lock()
        self.partial: Dict[Tuple[int, str], bytes] = {}

    def feed(self, who: int, stream: str, data: bytes, end: bool = False) -> None:
        data = self.partial.pop((who, stream), b"") + data
        cut = len(data) if end else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if data[cut:]:
            self.partial[who, stream] = data[cut:]
        if cut:
            self.tell(stream, data[:cut].decode("utf-8", "replace"))

    def flush(self, who: int) -> None:
        for stream in ("stdout", "stderr"):
            self.feed(who, stream, b"", end=True)

    def tell(self, stream: str, text: str) -> None:
        with self.lock:
            if self.show:
                for line in text.splitlines():
                    self.show(stream, line)
                return
            target = getattr(sys, stream)
            if target is not None:
                target.write(text)
                target.flush()
