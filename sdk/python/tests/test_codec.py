"""The serialiser, without a cloud: what is packed here is unpacked in another process, as a worker would."""
import collections
import dataclasses
import enum
import os
import random
import subprocess
import sys
import textwrap
import threading
import typing
import unittest

SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
sys.path.insert(0, SRC)
from virga import _codec  # noqa: E402
from virga.errors import SerializationError  # noqa: E402

OTHER = f"""
import sys; sys.path[:0] = [{SRC!r}, {os.path.dirname(os.path.abspath(__file__))!r}]
from virga import _codec
func, args = _codec.unpack(bytearray(sys.stdin.buffer.read()))
sys.stdout.buffer.write(b"".join(_codec.pack(func(*args))))
"""


def packed(value):
    return b"".join(_codec.pack(value))


def there(func, *args):
    """func(*args) in another process, which has this module's file but not what was made in it."""
    done = subprocess.run([sys.executable, "-c", OTHER], input=packed((func, args)), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise AssertionError("the other process failed")
    return _codec.unpack(bytearray(done.stdout))


def at_a_prompt(source, *names):
    """Names of a module that no import finds, as a prompt's are."""
    space = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(source), "<prompt>", "exec"), space)  # noqa: S102
    return [space[name] for name in names]


def in_this_module(x):
    return x + 1


class Functions(unittest.TestCase):
    def test_one_of_a_module_travels_as_its_name(self):
        self.assertLess(len(packed(in_this_module)), 120)
        self.assertIs(_codec.unpack(bytearray(packed(in_this_module))), in_this_module)
        self.assertEqual(there(in_this_module, 1), 2)

    def test_lambdas_defaults_and_keyword_defaults(self):
        self.assertEqual(there(lambda x, y=3, *, z=4: (x, y, z), 1), (1, 3, 4))

    def test_closures_take_along_what_is_around_them(self):
        table = {"a": 1}

        def outer(k):
            def inner(name):
                return table[name] + k
            return inner

        self.assertEqual(there(outer(10), "a"), 11)

    def test_cells_that_two_functions_share_are_shared_there(self):
        count = 0

        def up():
            nonlocal count
            count += 1

        def look():
            return count

        def both():
            up()
            up()
            return look()

        self.assertEqual(there(both), 2)
        self.assertEqual(count, 0)

    def test_recursion_by_cell_and_by_global(self):
        def fact(n):
            return 1 if n < 2 else n * fact(n - 1)

        self.assertEqual(there(fact, 10), 3628800)
        even, = at_a_prompt("""
            def even(n): return True if n == 0 else odd(n - 1)
            def odd(n): return False if n == 0 else even(n - 1)
        """, "even")
        self.assertTrue(there(even, 10))

    def test_only_the_globals_it_uses_go_along(self):
        f, = at_a_prompt("""
            import threading
            lock = threading.Lock()
            factor = 3
            class Thing: lock = 1
            def f(x): return x * factor + Thing.lock
        """, "f")
        self.assertEqual(there(f, 2), 7)

    def test_functions_of_one_prompt_share_their_globals_there(self):
        f, = at_a_prompt("""
            seen = []
            def note(x): seen.append(x)
            def f(x):
                note(x)
                note(x)
                return seen
        """, "f")
        self.assertEqual(there(f, 1), [1, 1])

    def test_a_global_that_is_made_there_is_found_there(self):
        f, = at_a_prompt("""
            def f():
                global made
                made = 5
                return g()
            def g(): return made
        """, "f")
        self.assertEqual(there(f), 5)

    def test_modules_and_their_submodules(self):
        f, = at_a_prompt("""
            import xml.etree.ElementTree
            import os.path as p
            def f(text): return p.basename(xml.etree.ElementTree.fromstring(text).tag)
        """, "f")
        self.assertEqual(there(f, "<a/>"), "a")

    def test_comprehensions_generators_and_nested_functions_see_globals(self):
        f, = at_a_prompt("""
            k = 2
            def f(n):
                def g(i): return [i * k for _ in range(k)]
                return sum(x for i in range(n) for x in g(i))
        """, "f")
        self.assertEqual(there(f, 3), 12)

    def test_a_cell_with_nothing_in_it_yet(self):
        def outer():
            def f(x):
                return x if x < 5 else later
            yield f
            later = 1
            yield later

        self.assertEqual(there(next(outer()), 3), 3)

    def test_bound_methods_and_partials(self):
        import functools

        class Adder:
            def __init__(self, n):
                self.n = n

            def add(self, x):
                return self.n + x

        self.assertEqual(there(Adder(3).add, 4), 7)
        self.assertEqual(there(functools.partial(lambda a, b: a - b, 10), 4), 6)

    def test_what_cannot_travel_is_named(self):
        lock = threading.Lock()
        f, = at_a_prompt("import threading\nguard = threading.Lock()\ndef f():\n    with guard: pass", "f")
        with self.assertRaisesRegex(SerializationError, "the function f cannot be sent: the global 'guard' that it uses"):
            _codec.pack(f, "the function f")
        with self.assertRaisesRegex(SerializationError, "the variable 'lock' around it"):
            _codec.pack(lambda: lock, "a lambda")

    def test_a_function_that_comes_home_finds_what_is_here_now(self):
        f, g = at_a_prompt("k = 1\ndef f(): return k\ndef g(): return f", "f", "g")
        back = there(g)
        f.__globals__["k"] = 2
        self.assertEqual(back(), 2)


class Classes(unittest.TestCase):
    def test_instances_come_back_as_what_they_were(self):
        class Point:
            scale = 2

            def __init__(self, x):
                self.x = x

            def doubled(self):
                return type(self)(self.x * self.scale)

            @property
            def y(self):
                return self.x + 1

            @classmethod
            def make(cls):
                return cls(7)

            @staticmethod
            def three():
                return 3

        back = there(lambda p: p.doubled(), Point(4))
        self.assertIs(type(back), Point)
        self.assertEqual((back.x, back.y), (8, 9))
        self.assertEqual(there(lambda: (Point.make().x, Point.three())), (7, 3))

    def test_super_inheritance_and_slots(self):
        class Base:
            __slots__ = ("a",)

            def __init__(self, a):
                self.a = a

        class Child(Base):
            __slots__ = ("b",)

            def __init__(self, a, b):
                super().__init__(a)
                self.b = b

            def total(self):
                return self.a + self.b

        self.assertEqual(there(lambda: Child(1, 2).total()), 3)

    def test_dataclasses_keep_their_fields(self):
        @dataclasses.dataclass
        class Run:
            lr: float
            tags: list = dataclasses.field(default_factory=list)

        back = there(lambda r: dataclasses.replace(r, lr=0.5), Run(0.1, ["x"]))
        self.assertEqual(back, Run(0.5, ["x"]))
        self.assertEqual(there(lambda: [f.name for f in dataclasses.fields(Run)]), ["lr", "tags"])

    def test_enums_and_named_tuples(self):
        class Colour(enum.Enum):
            RED = 1
            BLUE = "b"

            def shout(self):
                return self.name + "!"

        Pair = collections.namedtuple("Pair", "a b")

        class Typed(typing.NamedTuple):
            n: int

        self.assertIs(there(lambda c: c, Colour.RED), Colour.RED)
        self.assertEqual(there(lambda: Colour("b").shout()), "BLUE!")
        self.assertEqual(there(lambda p: Pair(p.b, p.a), Pair(1, 2)), Pair(2, 1))
        self.assertEqual(there(lambda: Typed(3).n), 3)

    def test_abstract_classes_stay_abstract(self):
        import abc

        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...

        class Square(Shape):
            def area(self):
                return 4

        def make_one():
            try:
                Shape()
            except TypeError:
                return Square().area()

        self.assertEqual(there(make_one), 4)

    def test_exceptions_of_a_prompt(self):
        class Odd(Exception):
            pass

        back = there(lambda: Odd("text", 3))
        self.assertIs(type(back), Odd)
        self.assertEqual(back.args, ("text", 3))


class Values(unittest.TestCase):
    def test_large_buffers_are_not_copied_into_the_pickle(self):
        import pickle
        data = bytearray(os.urandom(1 << 16))
        parts = _codec.pack(pickle.PickleBuffer(data))
        self.assertEqual(len(parts), 3)
        self.assertIs(parts[2].obj, data)
        self.assertEqual(bytes(_codec.unpack(bytearray(b"".join(parts)))), bytes(data))

    def test_whatever_is_cut_off_or_changed_fails_cleanly(self):
        whole = packed({"a": [1, 2.5, "x" * 50], "b": b"y" * 50})
        for n in range(len(whole)):
            with self.assertRaises(SerializationError):
                _codec.unpack(whole[:n])
        numbers = random.Random(1)
        for _ in range(300):
            head = bytearray(whole)
            head[numbers.randrange(12)] ^= 1 << numbers.randrange(8)
            with self.assertRaises(SerializationError):
                _codec.unpack(head)


if __name__ == "__main__":
    unittest.main()
