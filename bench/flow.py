"""How fast are flows over networks? coset beside a plain loop in torch, learning and sampling.

The networks are noise: a step takes as long. On CUDA if there is one, else on one thread of the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bench import process
from bench.hardware import default_device, device_name, now, prepare, product_speed
from bench.measurement import Measurement, machine
from coset import Architecture, Epoch, Flow, Matching, Population, normal_starts, on_epoch, symmetry, zoo
from coset.data import Split
from coset.weightspace.graph_embedding import Conditioning
from coset.weightspace.unit_transformer import TransformerBlock

LIMIT = 900.0  # seconds for one row
MODEL = "mlp:784-10-10"
INPUTS, UNITS, CLASSES = 784, 10, 10
EPOCHS = 6  # of which the first, with warm-up, compilation and capture, is not counted
SOLVER_STEPS = 32
EXAMPLES = 1024
NOTES = (
    f"Networks {MODEL.removeprefix('mlp:')}, each coupled with its own start; a transformer of one token a unit: on "
    "CUDA of width 512 and depth 8 in bfloat16, on batches of 512; else of width 128 and depth 4, on batches of 64.",
    "coset: a Euclidean flow that counts errors of velocities, as the plain loop does. On CUDA steps are compiled and "
    "captured. geometric, outputs: the default, which lives on spheres, also counts errors of outputs, and has Muon in "
    "place of Adam.",
    "plain torch: the same blocks in a module of tokens, torch.optim.AdamW, clipping and an average of the weights.",
    "learning: the fastest epoch but the first, in CPU seconds on a CPU. sampling: 32 steps of Heun's method.",
    "arithmetic: GFLOP of the plain network at the speed of a large matrix product, over the step or the sample.",
    "peak MiB: what torch allocated on CUDA; else all of the process of a row, of which some 300 are torch itself.",
)


@dataclass(frozen=True)
class FlowCase:
    """A flow and how it is learned: `steps` of an epoch, on batches of `batch`, and `samples` that are drawn."""

    architecture: Architecture
    batch: int
    precision: str
    compile: bool
    steps: int
    samples: int


CASES = {
    "cpu": FlowCase(Architecture("units", 128, 4), 64, "float32", False, 2, 64),
    "cuda": FlowCase(Architecture("units", 512, 8, heads=4), 512, "bfloat16", True, 40, 1024),
}
LEARNING, SAMPLING = "learning", "sampling"


def run(seed: int, say: Callable[[str], None]) -> Measurement:
    """Two rows for each tool: a step of learning, and samples."""
    device = default_device()
    case = CASES[device.type]
    speed, operations = product_speed(device, case.precision), flop(case)
    # A step is a forward and a backward pass of a batch; a sample two forward passes for each step of the solver.
    work = {LEARNING: operations[LEARNING] * case.batch, SAMPLING: operations[SAMPLING] * 2 * SOLVER_STEPS}
    rows: list[dict[str, Any]] = []
    for tool in TOOLS:
        say(tool)
        measurement = process.measure_apart(measure, {"tool": tool, "seed": seed}, (LEARNING, SAMPLING), LIMIT)
        for task in (LEARNING, SAMPLING):
            seconds = measurement[task]
            row = {"task": task, "tool": tool, "ms": seconds and 1e3 * seconds}
            row["networks a second"] = seconds and (case.batch if task == LEARNING else 1) / seconds
            first = next((each for each in rows if each["task"] == task), row)
            row["times coset"] = row["ms"] / first["ms"] if row["ms"] and first["ms"] else None
            row["GFLOP"] = work[task] / 1e9
            row["arithmetic"] = work[task] / speed / seconds if seconds else None
            rows.append(row | {key: measurement[key] for key in ("peak MiB", "note")})
    more = {"device": device_name(), "product GFLOP/s": round(speed / 1e9, 1)}
    return Measurement("Milliseconds of a step of learning, and of a sample", rows, NOTES, machine("torch") | more)


def measure(tool: str, seed: int) -> dict[str, Any]:
    """Seconds of a step of learning and of a sample, and on CUDA the peak memory."""
    device = default_device()
    prepare(device, seed)
    case = CASES[device.type]
    starts = normal_starts(zoo.build(MODEL), _symmetry()).states(case.steps * case.batch, torch.Generator())
    ends = {name: x + 0.5 * x.std() * torch.randn_like(x) for name, x in starts.items()}
    step, sample = TOOLS[tool](Population(ends, starts).to(device), case, device)
    measurement = {LEARNING: step, SAMPLING: sample}
    if device.type == "cuda":
        measurement["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
    return measurement


def by_coset(population: Population, case: FlowCase, device: torch.device, whole: bool = False) -> tuple[float, float]:
    """Seconds of a step of `Flow.fit`, and of a network of `Flow.sample`. whole: all that is counted by default."""
    ends: list[float] = []

    def note(epoch: Epoch) -> None:
        ends.append(now(device))

    # The plain loop has Adam, so ours has where the two are compared.
    matching = Matching(
        EPOCHS,
        case.batch,
        optimizer=Matching.optimizer if whole else "adam",
        precision=case.precision,  # type: ignore[arg-type]
        compile=case.compile,
    )
    flow = Flow(_symmetry(), "geometric" if whole else "euclidean", architecture=case.architecture)
    task: dict[str, Any] = {}
    if whole:
        inputs, targets = torch.randn(EXAMPLES, INPUTS), torch.randint(CLASSES, (EXAMPLES,))
        task = {"model": zoo.build(MODEL), "data": Split(inputs, targets)}
    flow.fit(population, matching, device=device, progress=on_epoch(note), **task)
    generator = torch.Generator(device).manual_seed(0)
    seconds = _repeated(lambda: flow.sample(case.samples, SOLVER_STEPS, generator=generator), device)
    return _fastest_epoch(ends) / case.steps, seconds / case.samples


def by_coset_whole(population: Population, case: FlowCase, device: torch.device) -> tuple[float, float]:
    """The same of a geometric flow that also counts errors of outputs."""
    return by_coset(population, case, device, whole=True)


def by_torch(population: Population, case: FlowCase, device: torch.device) -> tuple[float, float]:
    """The same of the loop that one writes first."""
    assert population.starts is not None
    (x0, y0), (x1, y1) = (_tokens(states) for states in (population.starts, population.states))
    net = Plain(case.architecture).to(device)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.01, fused=device.type == "cuda")

    def velocity(module: nn.Module, x: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bfloat16"):
            v, w = module(x, y, t)
        return v.float(), w.float()

    def step() -> None:
        at = torch.randint(len(x0), (case.batch,), device=device)
        t = torch.rand(case.batch, device=device)
        a, b = t[:, None, None], t[:, None]
        x, y = torch.lerp(x0[at], x1[at], a), torch.lerp(y0[at], y1[at], b)
        v, w = velocity(net, x, y, t)
        loss = (v - (x1[at] - x0[at])).square().mean() + (w - (y1[at] - y0[at])).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.001)

    @torch.no_grad()
    def sample() -> None:
        x = torch.randn(case.samples, *x0.shape[1:], device=device)
        y = torch.randn(case.samples, *y0.shape[1:], device=device)
        h = 1 / SOLVER_STEPS
        for k in range(SOLVER_STEPS):
            times = [torch.full((case.samples,), (k + i) * h, device=device) for i in (0, 1)]
            v, w = velocity(average, x, y, times[0])
            v_next, w_next = velocity(average, x + h * v, y + h * w, times[1])
            x, y = x + h / 2 * (v + v_next), y + h / 2 * (w + w_next)

    ends = []
    for _ in range(EPOCHS):
        for _ in range(case.steps):
            step()
        ends.append(now(device))
    return _fastest_epoch(ends) / case.steps, _repeated(sample, device) / case.samples


TOOLS: dict[str, Callable[[Population, FlowCase, torch.device], tuple[float, float]]] = {
    "coset": by_coset,
    "coset, geometric, outputs": by_coset_whole,
    "plain torch": by_torch,
}


class Plain(nn.Module):
    """(x [n, units, features], y [n, outputs], t [n]) -> velocities of both: units as tokens, and one for the rest."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width, features = architecture.width, INPUTS + 1 + CLASSES
        self.conditioning = Conditioning(width, 0)
        self.units, self.rest = nn.Linear(features, width), nn.Linear(CLASSES, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, architecture.heads) for _ in range(architecture.depth))
        self.norm = nn.LayerNorm(width)
        self.units_out, self.rest_out = nn.Linear(width, features), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        c = self.conditioning(t, None)
        tokens = torch.cat([self.units(x), self.rest(y)[:, None]], 1)
        for block in self.blocks:
            tokens = block(tokens, c)
        tokens = self.norm(tokens)
        return self.units_out(tokens[:, :-1]), self.rest_out(tokens[:, -1])


def flop(case: FlowCase) -> dict[str, int]:
    """Floating-point operations for one network: of a forward pass, and of one with its gradients."""
    few = 2
    net = Plain(case.architecture)
    inputs = torch.randn(few, UNITS, INPUTS + 1 + CLASSES), torch.randn(few, CLASSES), torch.rand(few)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        net(*inputs)
    with FlopCounterMode(display=False) as both:
        torch.autograd.backward(sum(out.sum() for out in net(*inputs)))
    return {SAMPLING: forward.get_total_flops() // few, LEARNING: both.get_total_flops() // few}


def _tokens(states: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The weights of each hidden unit, in and out, and the biases of the outputs."""
    into, bias, out, rest = (states[f"layers.{k}.{name}"] for k in (0, 1) for name in ("weight", "bias"))
    return torch.cat([into, bias[..., None], out.mT], -1), rest


def _symmetry() -> Any:
    model = zoo.build(MODEL)
    return symmetry(model, zoo.example_input(model))


def _repeated(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the second call."""
    call()
    start = now(device)
    call()
    return now(device) - start


def _fastest_epoch(ends: list[float]) -> float:
    return min(end - start for start, end in pairwise(ends))
