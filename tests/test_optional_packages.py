"""Without the optional packages everything else works, and what needs one says which extra brings it."""

import subprocess
import sys
from pathlib import Path

HIDE = """
import sys


class Hiding:
    \"\"\"A finder that does not find the packages of `names`.\"\"\"

    def __init__(self, finder, names):
        self.finder, self.names = finder, names

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


absent = sys.argv.pop().split()
sys.meta_path[:] = [Hiding(finder, absent) for finder in sys.meta_path]
import torch, coset

model = coset.zoo.build("mlp:6-5-3")
data = torch.randn(32, 6), torch.randint(3, (32,))
"""
PACKAGES = ("matplotlib", "sklearn", "PIL", "torchdiffeq")


def run(code: str, absent: tuple[str, ...], folder: Path) -> str:
    """What the code prints where packages are absent; it may use `coset`, `torch`, `model`, `data` and `absent`."""
    command = [sys.executable, "-c", HIDE + code, " ".join(absent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_needs_none_of_them(tmp_path: Path) -> None:
    code = """
for name in dir(coset):
    getattr(coset, name)
sym = coset.symmetry(model, (data[0],))
a, b = coset.fit(model, data, coset.MAP(epochs=1), replicas=2)
coset.align(a, b, sym).element
coset.evaluate(coset.merge([a, b], sym), model, data)
coset.barrier(coset.geodesic(a, b), model, data, points=3).height
coset.plot.page("no figure", [{"a": "1"}], [])
a.save("a.safetensors")
b.save("b.safetensors")

from coset.cli import main

for line in ("inspect mlp:6-5-3", "align a.safetensors b.safetensors --model mlp:6-5-3 -o c.safetensors", "--help"):
    sys.argv = ["coset", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
assert not {name.partition(".")[0] for name in sys.modules} & {*absent}
print("all works")
"""
    assert run(code, PACKAGES, tmp_path).endswith("all works\n")


CALLS = {
    "coset.plot.canvas(4, 3)": ("matplotlib", "plot"),
    "coset.plot.groups(coset.symmetry(model, (data[0],)))": ("matplotlib", "plot"),
    "coset.Barrier((0.0, 1.0), (0.5, 0.5)).plot()": ("matplotlib", "plot"),
    "plane.plot()": ("matplotlib", "plot"),
    "coset.data.load('digits')": ("sklearn", "data"),
    "coset.data.load('breast-cancer')": ("sklearn", "data"),
    "tiny_imagenet._decode(b'', 'a.JPEG')": ("PIL", "data"),
    "cifar_mosaic.batch(path)": ("PIL", "data"),
    "solve(lambda x, t: -x, torch.ones(2, flat.size), flat, Solver(method='dopri5'))": ("torchdiffeq", "ode"),
}
NAMES = """
from pathlib import Path
from coset.data import cifar_mosaic, tiny_imagenet
from coset.flow.solvers import Solver, solve

path = Path("cifar-10/data_batch_1.webp")
cifar_mosaic.hashes.read = lambda path, expected: b""
flat = coset.manifold(coset.symmetry(coset.zoo.build("mlp:6-5-3,activation=tanh"), (data[0],)))
grid = ((0.0, 0.0), (0.0, 0.0))
plane = coset.Plane((0.0, 1.0), (0.0, 1.0), ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)), grid, None, 1)
"""


# Nothing imports a package that another call is without, so one process serves all of them.
ONE_BY_ONE = """
for package, calls in needs.items():
    absent[:] = [package]
    for call in calls:
        assert package not in sys.modules
        try:
            exec(call)
        except coset.CosetError as error:
            print(error)
        else:
            print(call)
"""


def test_one_sentence_names_the_extra(tmp_path: Path) -> None:
    calls: dict[str, list[str]] = {}
    sentences = []
    for call, (package, extra) in sorted(CALLS.items(), key=lambda item: item[1]):
        calls.setdefault(package, []).append(call)
        sentences.append(f"This needs {package}, which is not installed: pip install 'coset[{extra}]'.")
    assert calls.keys() == set(PACKAGES)
    assert run(f"{NAMES}\nneeds = {calls!r}\n{ONE_BY_ONE}", PACKAGES, tmp_path).splitlines() == sentences
