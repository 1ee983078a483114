"""What the package's own text may hold: no shell for data, no code from data, no way around a door.

An abstract syntax tree is searched, so that a new place is seen before it is run. Each exception
stands here by its file, with the reason.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import fleetcraft

PACKAGE = Path(fleetcraft.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def dotted(node: ast.expr) -> str:
    """``os.execv`` of that expression; empty where it is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


@cache
def nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Every node of the kinds that are looked at, with its file; walked once."""
    kinds = (ast.Call, ast.List, ast.Tuple, ast.ClassDef, ast.Import, ast.ImportFrom)
    return tuple(
        (file, node)
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    )


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Every call: its file, what is called, and the node."""
    return tuple(
        (file, name, node)
        for file, node in nodes()
        if isinstance(node, ast.Call) and (name := dotted(node.func))
    )


def files_that_call(*names: str) -> set[str]:
    return {file for file, name, _ in calls() if name in names}


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in node.keywords if word.arg == name), None)


def test_no_command_goes_through_a_shell() -> None:
    assert not [f"{file}:{node.lineno}" for file, _, node in calls() if keyword(node, "shell")]
    assert not files_that_call(
        "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
        "asyncio.create_subprocess_shell", "commands.getoutput",
    )  # fmt: skip


def test_every_program_is_started_from_a_list_of_words() -> None:
    started = {"subprocess.run", "subprocess.Popen", "subprocess.check_output", "Popen"}
    texts = [
        f"{file}:{node.lineno}"
        for file, name, node in calls()
        if name in started and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
    ]
    assert texts == []


def test_bash_is_told_text_only_where_the_text_is_our_own() -> None:
    found = set()
    for file, node in nodes():
        if isinstance(node, ast.List | ast.Tuple):
            words = [w.value for w in node.elts if isinstance(w, ast.Constant)]
            if "-c" in words and {"bash", "sh"} & set(map(str, words)):
                found.add(file)
    reasons = {
        "cli/allocation.py": "sources slurm.setup, whose owner is looked at; the rest is arguments",
        "fleet/allocation/launcher.py": "the user's own command that runs beside the workers",
        "worker/telemetry_logger.py": "a fixed line; the command is its arguments",
    }
    assert found == set(reasons)


def test_no_data_becomes_code() -> None:
    assert not files_that_call("eval", "exec", "compile", "__import__", "execfile")
    assert not files_that_call("marshal.loads", "marshal.load", "shelve.open", "dill.load")
    assert not files_that_call(
        "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.FullLoader",
        "yaml.UnsafeLoader", "yaml.Loader", "yaml.safe_load_all",
    )  # fmt: skip
    assert not files_that_call("numpy.load", "np.load", "joblib.load", "pandas.read_pickle")


def test_yaml_is_read_by_loaders_of_plain_values() -> None:
    loaders = {
        (file, dotted(base))
        for file, node in nodes()
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if "Loader" in dotted(base)
    }
    assert loaders == {("batch_table/reading.py", "yaml.SafeLoader")}


def test_pickles_are_read_by_one_list_of_names_only() -> None:
    importing = {
        file
        for file, node in nodes()
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "pickle" in {getattr(node, "module", ""), *(name.name for name in node.names)}
    }
    # torch's own metadata of a distributed checkpoint is a pickle; `find_class` has the list.
    assert importing == {"training/checkpoint/distributed.py"}
    assert not files_that_call("pickle.load", "pickle.loads", "pickle.Unpickler")


def test_tensors_are_loaded_as_weights_only() -> None:
    loads = [(file, node) for file, name, node in calls() if name == "torch.load"]
    assert loads
    for file, node in loads:
        value = keyword(node, "weights_only")
        assert isinstance(value, ast.Constant), (file, node.lineno)
        assert value.value is True, (file, node.lineno)


def test_modules_are_imported_by_a_name_from_data_only_where_it_is_the_users_own_code() -> None:
    named = {
        file
        for file, name, node in calls()
        if name in ("importlib.import_module", "import_module")
        and node.args
        and not isinstance(node.args[0], ast.Constant)
    }
    reasons = {
        "__init__.py": "the table of public names beside it",
        "batch_table/__init__.py": "the same",
        "calibration/__init__.py": "the same",
        "evidence/__init__.py": "the same",
        "plots/__init__.py": "the same",
        "training/checkpoint/__init__.py": "the same",
        "video/__init__.py": "the same",
        "cli/lazy.py": "the table of verbs",
        "doctor/checks.py": "the table of checks",
        "training/progress/adapters/lightning.py": "two names of one library, written there",
        "calibration/family.py": "a family that the user names on the command line",
        "calibration/trial/keeper.py": "that family again, in an order of our own parent",
    }
    assert named <= set(reasons), named - set(reasons)
    assert files_that_call("importlib.util.spec_from_file_location") == {"calibration/family.py"}


def test_programs_are_found_by_the_door_that_passes_over_the_current_folder() -> None:
    searching = files_that_call("shutil.which")
    reasons = {
        "trust.py": "the door",
        "doctor/quotas.py": "only says what is there, or asks lfs about a quota by its full path",
        "doctor/environment.py": "only says what is there",
        "doctor/scheduler.py": "only says what is there",
        "training/launching/keeper.py": "the user's own command on the user's own PATH",
        "training/plan/stack.py": "the same",
        "caches/commanding.py": "the same",
        "evidence/tracing/sameness.py": "the same",
    }
    assert searching <= set(reasons), searching - set(reasons)


def test_nothing_is_signalled_but_children_and_what_was_identified() -> None:
    reasons = {
        "process.py": "a child that was not waited for",
        "worker/logger_keeper.py": "the same",
        "worker/member_process.py": "the same",
        "training/launching/signalling.py": "identified first; where there are no pidfds",
        "calibration/families/demo/faults.py": "itself: a fault that is asked for",
    }
    killing = files_that_call("os.kill")
    assert killing <= set(reasons), killing - set(reasons)
    groups = files_that_call("os.killpg")
    ours = {
        "doctor/examining.py", "slurm/program.py", "calibration/trial/participants.py",
        "caches/commanding.py", "fleet/snapshot/probe_step.py",
    }  # fmt: skip
    assert groups <= ours, "a group whose leader is a child that was not waited for"


def test_folders_are_made_by_the_door_that_gives_every_one_of_them_its_mode() -> None:
    assert not files_that_call("os.makedirs")
    made = {
        f"{file}:{node.lineno}"
        for file, name, node in calls()
        if name.endswith(".mkdir") and keyword(node, "parents")
    }
    assert not made


def test_what_people_read_leaves_by_the_doors_that_make_it_harmless() -> None:
    writing = files_that_call(
        "sys.stdout.write", "sys.stderr.write", "print", "click.echo", "click.secho",
        "sys.stdout.buffer.write",
    )  # fmt: skip
    reasons = {
        "cli/output.py": "the door",
        "view/live.py": "through harmless()",
        "view/calibration_progress.py": "through harmless()",
        "view/video.py": "one_line() and a number",
        "view/train_preflight.py": "a number of seconds",
        "cli/main.py": "our own words",
        "cli/session.py": "our own help",
        "cli/batch.py": "counts",
        "cli/doctor.py": "names of checks",
        "cli/stream.py": "counts",
        "cli/evidence/trace.py": "counts",
        "cli/rollouts/audit.py": "counts",
        "cli/caches/env.py": "byte for byte, for a shell; never to a terminal",
        "cli/logs.py": "byte for byte, for a program; printable() on a terminal",
        "cli/show.py": "the same",
        "cli/report.py": "the page itself, whose text is escaped",
        "telemetry/logger/loop.py": "the name of its own file and errors of the system",
        "training/plan/inspection.py": "inside the user's own training",
        "calibration/stack.py": "our own usage",
        "calibration/families/demo/drafter.py": "numbers, for its parent",
        "fleet/snapshot/probe.py": "JSON, for the process that asked",
        "gpu/devices.py": "JSON, for the process that asked",
        "training/launching/keeper.py": "errors of the system, into the log of its node",
    }
    assert writing <= set(reasons), writing - set(reasons)


def test_guessable_temporary_names_are_never_made() -> None:
    assert not files_that_call("tempfile.mktemp", "os.tempnam", "os.tmpnam")


def test_no_archive_is_unpacked() -> None:
    importing = {
        file
        for file, node in nodes()
        if isinstance(node, ast.Import | ast.ImportFrom)
        and {getattr(node, "module", ""), *(name.name for name in node.names)}
        & {"zipfile", "tarfile", "shutil.unpack_archive"}
    }
    assert importing == set()
    assert not files_that_call("shutil.unpack_archive")
