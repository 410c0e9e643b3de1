"""The ctypes layer, with the standard library alone: no torch, no numpy, no GPU.

Run by `python3 -m unittest`, and by pytest like any other test.
"""

import array
import ctypes as c
import math
import os
import random
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rota  # noqa: E402
from rota import _library as native  # noqa: E402
from rota import _plans as plans  # noqa: E402

CPU = native.DEVICE_CPU


def attention_reference(q, k, v, allowed, scale):
    """Rows of floats in, (o, lse) out: plain softmax attention of one head in double."""
    o, lse = [], []
    for i, row in enumerate(q):
        scores = {
            j: scale * sum(a * b for a, b in zip(row, key))
            for j, key in enumerate(k)
            if allowed(i, j)
        }
        top = max(scores.values(), default=-math.inf)
        weights = {j: math.exp(s - top) for j, s in scores.items()}
        total = sum(weights.values())
        lse.append(top + math.log(total) if total else -math.inf)
        o.append(
            [sum(w * v[j][d] for j, w in weights.items()) / (total or 1) for d in range(len(v[0]))]
        )
    return o, lse


class Problem:
    """One head of fp32 numbers in C memory, with room for all results."""

    def __init__(self, n_q, n_k, dim, seed=0):
        draw = random.Random(seed)
        self.n_q, self.n_k, self.dim = n_q, n_k, dim
        self.data = {
            name: array.array("f", [draw.gauss(0, 1) for _ in range(rows * dim)])
            for name, rows in (("q", n_q), ("k", n_k), ("v", n_k), ("d_o", n_q))
        }
        for name, rows in (("o", n_q), ("d_q", n_q), ("d_k", n_k), ("d_v", n_k)):
            self.data[name] = array.array("f", [math.nan] * (rows * dim))
        self.data["lse"] = array.array("f", [math.nan] * n_q)

    def rows(self, name):
        flat = self.data[name]
        return [list(flat[i : i + self.dim]) for i in range(0, len(flat), self.dim)]

    def arguments(self):
        views = []
        for name in ("q", "k", "v", "o", "lse", "d_o", "d_q", "d_k", "d_v"):
            row = 1 if name == "lse" else self.dim
            views.append((self.data[name].buffer_info()[0], 0, row, 0))
        return plans.pack_arguments([*views, plans.NO_TENSOR, plans.NO_TENSOR])

    def run(self, plan):
        space = c.create_string_buffer(plan.workspace_size + 256)
        address = c.addressof(space)
        plan.run(self.arguments(), address + -address % 256, plan.workspace_size)


def model(**fields):
    return plans.Model(native.FP32, 8, 8, 1, **fields)


def prepare(model, shape, direction=native.FORWARD, addresses=()):
    target = plans.Target(direction, CPU, 0, native.LAYOUT_ANY)
    key = plans.PlanKey(model, target, shape)
    return plans.cached_plan(key) or plans.make_plan(key, addresses)


class Interface(unittest.TestCase):
    """The declarations in Python against rota.h itself."""

    def setUp(self):
        self.header = (ROOT.parent / "include" / "rota" / "rota.h").read_text()

    def test_every_function_is_declared(self):
        declared = set(re.findall(r"ROTA_API [^;]*?\b(rota_\w+)\(", self.header))
        self.assertEqual(declared, set(native._SIGNATURES))

    def test_structures_have_the_fields_of_the_header(self):
        pairs = {
            "rota_context_options": native.ContextOptions,
            "rota_spec_fields": native.SpecFields,
            "rota_kernel_request": native.KernelRequest,
            "rota_kernel_info": native.KernelInfo,
            "rota_lengths": native.Lengths,
            "rota_named_tensor": native.NamedTensor,
            "rota_named_value": native.NamedValue,
            "rota_plan_request": native.PlanRequest,
            "rota_plan_info": native.PlanInfo,
            "rota_tensor": native.Tensor,
            "rota_arguments": native.Arguments,
        }
        text = re.sub(r"/\*.*?\*/", "", self.header, flags=re.S)
        for name, structure in pairs.items():
            body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.S).group(1)
            names = []
            for declaration in body.split(";"):
                words = declaration.split(",")
                names += [
                    re.findall(r"\w+", re.sub(r"\[.*?\]", "", w))[-1] for w in words if w.strip()
                ]
            self.assertEqual(names, [field[0] for field in structure._fields_], name)

    def test_status_codes_and_enumerations(self):
        for name, value in re.findall(r"X\((\w+), (\d+), ", self.header):
            self.assertEqual(native.library().rota_status_name(int(value)).decode(), name)
        values = dict(re.findall(r"ROTA_(\w+) = (\d+)", self.header))
        for name in ("BF16", "FP16", "FP32", "INT32", "FORWARD", "BACKWARD", "DEVICE_CUDA",
                     "DEVICE_CPU", "DEVICE_AUTO", "LAYOUT_ALIGNED", "LAYOUT_ANY"):  # fmt: skip
            self.assertEqual(getattr(native, name), int(values[name]), name)

    def test_packed_arguments_have_the_size_of_the_structure(self):
        self.assertEqual(plans.ARGUMENTS.size, c.sizeof(native.Arguments))
        packed = plans.pack_arguments([(i, i + 1, i + 2, i + 3) for i in range(1, 12)], 91, 92)
        read = native.Arguments.from_buffer_copy(packed)
        self.assertEqual((read.q.data, read.q.stride_head), (1, 4))
        self.assertEqual((read.d_lse.data, read.d_lse.stride_row), (10, 12))
        self.assertEqual((read.mean_square.data, read.mean_square.stride_row), (11, 13))
        self.assertEqual((read.sink, read.d_sink, read.tensor_count), (91, 92, 0))

    def test_version(self):
        self.assertEqual(rota.version().rpartition(".")[0], native.INTERFACE)


class Loading(unittest.TestCase):
    def python(self, code, **environment):
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
        )

    def test_import_needs_no_torch_and_no_library(self):
        code = (
            "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
            "import rota; print('attention' in dir(rota), rota.Error.__name__)"
        )
        run = self.python(code, ROTA_LIBRARY="/nowhere/librota.so")
        self.assertEqual(run.stdout, "True Error\n", run.stderr)

    def test_a_missing_library_says_where_it_was_looked_for(self):
        run = self.python("import rota; rota.version()", ROTA_LIBRARY="/nowhere/librota.so")
        self.assertIn("ImportError: librota was not found", run.stderr)
        self.assertIn("/nowhere/librota.so", run.stderr)

    def test_unknown_attribute(self):
        with self.assertRaises(AttributeError):
            rota.no_such_thing


class Running(unittest.TestCase):
    def test_forward_matches_a_plain_softmax(self):
        problem = Problem(13, 21, 8)
        problem.run(prepare(model(mask="causal & window(6, 0)"), plans.Shape(1, 13, 21, 1, 1)))
        o, lse = attention_reference(
            problem.rows("q"), problem.rows("k"), problem.rows("v"),
            lambda i, j: j <= i + 8 and i + 8 - j <= 6, 1 / math.sqrt(8),
        )  # fmt: skip
        for row, wanted in zip(problem.rows("o"), o):
            for a, b in zip(row, wanted):
                self.assertAlmostEqual(a, b, places=5)
        for a, b in zip(problem.data["lse"], lse):
            self.assertAlmostEqual(a, b, places=5)

    def test_backward_matches_finite_differences_and_repeats_bit_for_bit(self):
        problem, shape = Problem(7, 9, 8), plans.Shape(1, 7, 9, 1, 1)
        capped = model(mask="causal", score="softcap(2)")
        forward = prepare(capped, shape)
        backward = prepare(capped, shape, native.BACKWARD)
        problem.run(forward)
        problem.run(backward)
        first = {name: bytes(problem.data[name]) for name in ("d_q", "d_k", "d_v")}

        def loss():
            problem.run(forward)
            return sum(a * b for a, b in zip(problem.data["o"], problem.data["d_o"]))

        for name in ("q", "k", "v"):
            for at in (0, 11, 30):
                kept = problem.data[name][at]
                problem.data[name][at] = kept + 1e-2
                above = loss()
                problem.data[name][at] = kept - 1e-2
                below = loss()
                problem.data[name][at] = kept
                slope = (above - below) / 2e-2
                self.assertAlmostEqual(problem.data["d_" + name][at], slope, places=3)
        problem.run(forward)
        problem.run(backward)
        self.assertEqual(first, {name: bytes(problem.data[name]) for name in first})

    def test_a_mask_tensor_and_a_value(self):
        document = array.array("i", [0, 0, 0, 1, 1, 1])
        named = plans.NamedTensor("document", native.INT32, (1, 6), bytes(document))
        shape = plans.Shape(1, 6, 6, 1, 1, tensors=(named,), values=(("window_left", 1.0),))
        problem = Problem(6, 6, 8)
        address = document.buffer_info()[0]
        problem.run(prepare(model(mask="document & window(5, 0)"), shape, addresses=[address]))
        _, lse = attention_reference(
            problem.rows("q"), problem.rows("k"), problem.rows("v"),
            lambda i, j: document[i] == document[j] and 0 <= i - j <= 1, 1 / math.sqrt(8),
        )  # fmt: skip
        for a, b in zip(problem.data["lse"], lse):
            self.assertAlmostEqual(a, b, places=5)


class Failing(unittest.TestCase):
    def test_errors_have_classes_and_messages(self):
        shape = plans.Shape(1, 4, 4, 1, 1)
        with self.assertRaisesRegex(rota.ScriptError, "cauzal"):
            prepare(model(mask="cauzal"), shape)
        with self.assertRaises(ValueError):
            prepare(model(mask='where("k <= ")'), shape)
        with self.assertRaisesRegex(rota.InvalidArgument, "document"):
            prepare(model(mask="document"), shape)
        with self.assertRaisesRegex(rota.Error, "2048") as caught:
            prepare(plans.Model(native.BF16, 2048, 2048, 1), shape)
        self.assertIn(caught.exception.status, ("UNSUPPORTED", "INVALID_ARGUMENT"))

    def test_a_gpu_that_is_not_there(self):
        try:
            plans.kernel(model(), plans.Target(native.FORWARD, native.DEVICE_CUDA, 99))
        except rota.Error as error:
            self.assertIn(error.status, ("NO_DEVICE", "INVALID_ARGUMENT"))
        else:
            self.fail("device 99 cannot be there")

    def test_a_missing_pointer_is_refused(self):
        plan = prepare(model(), plans.Shape(1, 4, 4, 1, 1))
        with self.assertRaisesRegex(rota.InvalidArgument, "NULL"):
            plan.run(plans.pack_arguments([plans.NO_TENSOR] * 11), 0, 0)


class Caching(unittest.TestCase):
    def test_the_least_recently_used_goes_first(self):
        out = []
        cache = plans.Cache(2, out.append)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual(cache.get("a"), 1)
        cache.put("c", 3)
        self.assertEqual((out, cache.get("b"), cache.get("a"), cache.get("c")), ([2], None, 1, 3))

    def test_what_was_used_unseen_is_passed_over_once(self):
        class Value:
            fresh = False

        values, out = [Value() for _ in range(4)], []
        cache = plans.Cache(2, out.append)
        cache.put(0, values[0])
        cache.put(1, values[1])
        values[0].fresh = True
        cache.put(2, values[2])
        self.assertEqual(out, [values[1]])
        self.assertFalse(values[0].fresh)
        for value in values:
            value.fresh = True
        cache.put(3, values[3])
        self.assertEqual((len(out), len(cache.entries)), (2, 2))
        self.assertIs(cache.get(3), values[3])

    def test_plans_are_made_once_and_bounded(self):
        shape = plans.Shape(1, 5, 5, 1, 1)
        self.assertIs(prepare(model(), shape), prepare(model(), shape))
        bound, plans._plans.bound = plans._plans.bound, 4
        try:
            for length in range(1, 20):
                prepare(model(), plans.Shape(1, length, length, 1, 1))
            self.assertEqual(len(plans._plans.entries), 4)
        finally:
            plans._plans.bound = bound

    def test_a_busy_or_captured_plan_outlives_its_eviction(self):
        class Event:
            done = False

            def query(self):
                return self.done

        event, captured, busy = Event(), Holder(), Holder()
        captured.pinned = True
        busy.events = {0: event}
        plans.condemn(captured)
        plans.condemn(busy)
        self.assertEqual(plans._condemned[-2:], [captured, busy])
        event.done = True
        plans.condemn(Holder())
        self.assertEqual(plans._condemned, [captured])
        plans._condemned.clear()

    def test_streams_are_asked_for_an_event_when_a_plan_is_dropped(self):
        class Stream:
            asked = 0

            def record_event(self):
                self.asked += 1
                return self

            def query(self):
                return True

        stream, plan = Stream(), Holder()
        plan.streams = {7: stream}
        plans.condemn(plan)
        self.assertEqual((stream.asked, plan.dropped, plans._condemned), (1, True, []))

    def test_digests_tell_models_apart_and_repeat(self):
        shape = plans.Shape(1, 40, 40, 1, 1)
        full, causal = prepare(model(), shape), prepare(model(mask="causal"), shape)
        self.assertRegex(full.digest, "^[0-9a-f]{32}$")
        self.assertNotEqual(full.digest, causal.digest)
        target = plans.Target(native.FORWARD, CPU, 0, native.LAYOUT_ANY)
        again = plans.Plan(plans.kernel(model(), target), shape, ())
        self.assertEqual(full.digest, again.digest)

    def test_a_forked_child_works(self):
        prepare(model(), plans.Shape(1, 4, 4, 1, 1))
        child = os.fork()
        if child == 0:
            try:
                plans.kernel(model(mask="causal"), plans.Target(0, CPU, 0, 1))
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Holder:
    """Looks like a plan to the eviction code."""

    def __init__(self):
        self.pinned, self.dropped, self.streams, self.events = False, False, {}, {}

    busy, retire = plans.Plan.busy, plans.Plan.retire


if __name__ == "__main__":
    unittest.main()
