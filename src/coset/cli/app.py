"""The `coset` command: finds its subcommands, and turns what a user can cause into one sentence and an exit code.

A signal that ends it raises as Ctrl-C does, so that files are whole and whoever stops it hears where it was.

Nothing here imports torch before a command runs, so that `coset --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import pkgutil
import signal
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coset._version import __version__
from coset.cli import commands, console
from coset.core.errors import CosetError
from coset.core.lock import lock_scope

PLUGINS = "coset.commands"  # the group of entry points
NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
ENDS = ("SIGINT", "SIGTERM", "SIGHUP")  # of which not every system has all


class StopSignal(KeyboardInterrupt):
    """A signal asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """As shells count: 128 and the number of the signal."""
    return 128 + (stop.number if isinstance(stop, StopSignal) else signal.SIGINT)


def stop_by_exception() -> None:
    """Let signals raise, but for those that somebody ignores, such as nohup; a second one ends the process at once."""
    for name in ENDS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for name in ENDS:
        each = getattr(signal, name, None)
        if each is not None and signal.getsignal(each) is _stop:
            signal.signal(each, signal.SIG_DFL)
    raise StopSignal(number)


class _Commands(TyperGroup):
    """Turns what a user can cause into one sentence and an exit code."""

    def make_context(self, *words: Any, **options: Any) -> Any:
        with _in_sentences():
            return super().make_context(*words, **options)

    def invoke(self, ctx: Any) -> Any:
        with _in_sentences(), warnings.catch_warnings(), lock_scope():
            # Deprecations inside torch are nothing the user of a command can act on.
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            result = super().invoke(ctx)
            sys.stdout.flush()  # while what a full disk says about it can be told
            return result


@contextmanager
def _in_sentences() -> Iterator[None]:
    try:
        yield
    except CosetError as error:
        console.complain("error", str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        _say_stopped(stop)
        raise typer.Exit(exit_code(stop)) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # nobody reads what is printed
            raise
        console.complain("error", _sentence(error))
        raise typer.Exit(2) from None
    except (MemoryError, RuntimeError) as error:
        # Of torch, which has no class of its own for memory that a CPU does not have.
        if not (isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)):
            raise
        console.complain("error", "There is too little memory for this: ask for less at once.")
        raise typer.Exit(2) from None


def _say_stopped(stop: KeyboardInterrupt) -> None:
    advice = getattr(stop, "__notes__", None) or ["call the same command again"]
    console.complain("stopped", f"{'; '.join(advice)}.")


def _sentence(error: OSError) -> str:
    """What the system says, and about which file; a full disk, for one, may be met wherever something is written."""
    what = f"{error.filename}: " if error.filename else ""
    return f"{what}{error.strerror or error}."


app = typer.Typer(
    name="coset",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"coset {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: coset inspect vit --plot vit.png")
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Work with neural networks modulo their symmetries."""


def add_commands(group: typer.Typer, package: ModuleType) -> None:
    """Add the command of each file of a package: the function of the file's name. A package within is a group."""
    for file in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{file.name}")
        if file.ispkg:
            help, examples = _help(module)
            inner = typer.Typer(no_args_is_help=True, help=help, epilog=examples)
            add_commands(inner, module)
            group.add_typer(inner, name=file.name)
        else:
            function = getattr(module, file.name)
            help, examples = _help(function)
            group.command(name=file.name, help=help, epilog=examples)(function)


def _help(documented: Any) -> tuple[str, str]:
    """The docstring up to its examples, and the examples, which are shown below the options."""
    help, start, examples = (inspect.getdoc(documented) or "").partition("\n\nExample: ")
    return help, f"{start}{examples}".strip()


def add_plugins() -> None:
    """Add the commands that other distributions bring.

    Each entry point of the group `coset.commands` is a function that takes this app and adds its command. One that
    cannot be loaded becomes a command that says so, since the others must not suffer from it.
    """
    installed = list(entry_points(group=PLUGINS))
    names = {point.name for point in installed}
    for point in [*installed, *(point for point in checkout_plugins() if point.name not in names)]:
        try:
            point.load()(app)
        except Exception as error:
            _add_broken(point, error)


def checkout_plugins(sources: Path = Path(__file__).parents[2]) -> Iterator[EntryPoint]:
    """Those of the distributions beside the library in a checkout, `src` is `sources`, that runs without an install."""
    root = sources.parent
    is_checkout = sources.name == "src" and (root / "pyproject.toml").is_file()
    for file in sorted(root.glob("*/pyproject.toml")) if is_checkout else ():
        points = tomllib.loads(file.read_text(encoding="utf-8"))["project"].get("entry-points", {}).get(PLUGINS, {})
        folder = file.parent / "src"
        if points:
            sys.path.append(str(folder if folder.is_dir() else root))  # last, as a name there may be of a library
        yield from (EntryPoint(name, value, PLUGINS) for name, value in points.items())


def _add_broken(point: EntryPoint, error: Exception) -> None:
    def explain() -> None:
        raise CosetError(f"The command {point.name} of {point.value} cannot be loaded: {error}.")

    app.command(name=point.name, help="(cannot be loaded)")(explain)


add_commands(app, commands)
add_plugins()


def main() -> None:
    """The console script."""
    # Threads that wait by spinning make small models fifty times slower where other programs want the cores. It
    # must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        stop_by_exception()
        app(prog_name="coset")
    except KeyboardInterrupt as stop:  # outside of any command
        _say_stopped(stop)
        sys.exit(exit_code(stop))
