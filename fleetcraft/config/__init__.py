"""The settings: one table, and where each value comes from.

Precedence: flag, environment (``FLEET_<SECTION>_<NAME>``, then the classic short names),
``fleet.yaml`` in the project directory, the site profile, the default. Reading the YAML itself is
`yaml_file`'s. Invariant: every value knows its source, and nothing site-specific is here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from fleetcraft.errors import ConfigError, FleetError, UsageError
from fleetcraft.units import LONGEST_WAIT_S, parse_duration_s

FILE_NAME = "fleet.yaml"
Kind = Literal["path", "text", "slots", "seconds", "count", "flag"]
Scalar = str | float | int | bool | None
_EXPECTED: dict[str, str] = {
    "path": "a path",
    "text": "text",
    "slots": "a number of slots, or gpu",
    "seconds": "seconds, or a duration such as 90s or 00:30:00",
    "count": "a whole number",
    "flag": "true or false",
}
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MINUTES = frozenset({"MAX_IDLE_MIN"})
_OF_A_TREE = ("spool.dir", "spool.gpu_dir", "spool.of_task", "telemetry.dir", "batch.table")
_SLOTS = re.compile(r"[1-9]\d{0,3}|gpu")


class Setting(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        name: With dots; the parts are the nesting in ``fleet.yaml``.
        kind: What a value must be.
        doc: One line for people.
        default: None when there is none, or when it is derived from others.
        classic: Short environment names, tried after ``FLEET_<SECTION>_<NAME>``.
        least: The smallest number allowed.
        in_file: Whether ``fleet.yaml`` and site profiles may set it.
    """

    name: str
    kind: Kind
    doc: str
    default: Scalar = None
    classic: tuple[str, ...] = ()
    least: float = 0
    in_file: bool = True

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment names, first one first."""
        return (f"FLEET_{self.name.replace('.', '_').upper()}", *self.classic)


SETTINGS = (
    Setting("root", "path", "the scratch tree", classic=("PROJECT_SCRATCH",)),
    Setting(
        "project_dir",
        "path",
        "where commands run, and where fleet.yaml is looked for (the current folder)",
        classic=("PROJECT",),
        in_file=False,
    ),
    Setting("site", "text", "site profile: a name in infra/sites, or the path of a YAML file"),
    Setting("spool.dir", "path", "the outer spool (root/taskq)", classic=("SPOOL_DIR",)),
    Setting(
        "spool.gpu_dir", "path", "the inner spool (root/taskq_gpu)", classic=("GPU_SPOOL_DIR",)
    ),
    Setting(
        "spool.of_task",
        "path",
        "the spool of the task that this command runs in; workers set it",
        classic=("FLEET_SPOOL",),
        in_file=False,
    ),
    Setting(
        "worker.idle_s",
        "seconds",
        "a worker leaves after so long without work",
        1800.0,
        classic=("MAX_IDLE_MIN",),
    ),
    Setting("worker.slots", "slots", "tasks that one worker runs at a time", "1"),
    Setting("worker.heartbeat_s", "seconds", "between heartbeats", 30.0, least=0.05),
    Setting("worker.grace_s", "seconds", "between TERM and KILL when a task is stopped", 10.0),
    Setting(
        "worker.drain_margin_s",
        "seconds",
        "no claim when less walltime is left (the smaller of 120 s and a tenth of it)",
    ),
    Setting("worker.node_failures", "count", "fast failures that make a node unfit", 10, least=1),
    Setting("worker.node_failure_s", "seconds", "what counts as a fast failure", 10.0),
    Setting(
        "telemetry.dir",
        "path",
        "where telemetry is written and read (root/telemetry)",
        classic=("TELEMETRY_DIR",),
    ),
    Setting("telemetry.interval_s", "seconds", "between samples; 0 starts no logger", 30.0),
    Setting("batch.table", "path", "the frozen batch table (root/calibration/batch-table.yaml)"),
    Setting("batch.require", "flag", "tasks that name a family need a row of that table", False),
    Setting("batch.python", "path", "the Python whose torch tasks use (that of the worker)"),
    Setting("caches.root", "path", "where models and compilers keep their files (root/caches)"),
    Setting("caches.hub", "path", "the hub cache of models (caches.root/huggingface/hub)"),
    Setting("caches.local", "path", "node-local folder of generated sources (TMPDIR, or /tmp)"),
    Setting("caches.export", "flag", "workers tell their tasks where caches are", True),
    Setting("caches.offline", "flag", "tasks are told not to download models", False),
    Setting("storage.quota", "text", "folders with a small quota (~, unless root is there)"),
    Setting("storage.work", "path", "persistent storage, for code and compact evidence"),
    Setting("storage.purge_days", "count", "scratch removes files idle for so many days", least=1),
    Setting("slurm.partition", "text", "partition for fleets"),
    Setting("slurm.account", "text", "account that fleets are charged to"),
    Setting("slurm.qos", "text", "QOS for fleets"),
    Setting("slurm.constraint", "text", "node features that fleets need"),
    Setting("slurm.gpus_per_node", "count", "GPUs asked for on each node; none are if unset"),
    Setting("slurm.extra", "text", "further sbatch options, quoted as for a shell"),
    Setting("slurm.setup", "path", "a bash file that the batch script sources first (modules)"),
    Setting("slurm.warning_s", "seconds", "the warning signal comes so long before the end", 180.0),
    Setting("slurm.max_nodes", "count", "nodes that one fleet may ask for", least=1),
    Setting("fleet.restarts", "count", "starts of a node's worker again after it died", 3),
    Setting("fleet.lease_silent_s", "seconds", "a lease unchanged for so long is silent", 180.0),
    Setting("pack.bridges", "count", "packs that may wait for free GPUs at a time", 12),
    Setting("pack.idle_s", "seconds", "a pack leaves after so long without work", 60.0),
    Setting("pack.last_grid", "text", "sha256 of the frozen grid that alone may enter lane last"),
    Setting("login.hosts", "text", "host names (globs, separated by spaces) of login nodes"),
    Setting("login.reach", "text", "command that runs a command on a login node (ssh login1)"),
    Setting("guard.processes_caution", "count", "processes on a login node: caution", 25),
    Setting("guard.processes_stop", "count", "processes on a login node: no-go", 40),
    Setting("guard.threads_caution", "count", "threads on a login node: caution"),
    Setting("guard.threads_stop", "count", "threads on a login node: no-go"),
    Setting("guard.ssh_caution", "count", "ssh connections of a login node: caution", 2),
    Setting("guard.ssh_stop", "count", "ssh connections of a login node: no-go", 3),
    Setting("balance.account", "text", "account whose balance is watched (slurm.account)"),
    Setting("balance.tres", "text", "what the balance counts, such as node or gres/gpu", "node"),
    Setting("balance.headroom_h", "count", "hours of it that must stay; unchecked if unset"),
    Setting("renew.lanes", "text", "shapes that are renewed, such as 8x12:00:00 4x12:00:00"),
    Setting("renew.passes", "count", "passes in a row that must see the need", 2, least=1),
    Setting("renew.tasks_per_node", "count", "eligible tasks that justify one node", 1, least=1),
    Setting("renew.max_jobs", "count", "fleets of this scratch tree at a time", 2, least=1),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
SECTIONS = frozenset(name.partition(".")[0] for name in BY_NAME if "." in name)


class Value(msgspec.Struct, frozen=True):
    """A value and where it came from."""

    value: Scalar
    source: str


class Config:
    """Every setting's value."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values

    def text(self, name: str) -> str:
        """A path or text; empty when it is not set."""
        value = self.values[name].value
        return "" if value is None else str(value)

    def seconds(self, name: str) -> float:
        """A number that has a default."""
        return float(self.values[name].value or 0)

    def seconds_or_none(self, name: str) -> float | None:
        """A number that may be unset."""
        return None if self.values[name].value is None else self.seconds(name)

    def count(self, name: str) -> int:
        """A whole number that has a default."""
        return int(self.values[name].value or 0)

    def flag(self, name: str) -> bool:
        """Whether something that is on or off is on."""
        return bool(self.values[name].value)

    @property
    def root(self) -> str:
        """The scratch tree.

        Raises:
            ConfigError: Nothing says where it is.
        """
        root = self.text("root")
        if not root:
            raise ConfigError(
                "nothing says where the scratch tree is: no --root, no PROJECT_SCRATCH, "
                f"no {FILE_NAME} with a root",
                hint="fleetcraft --root DIR init, then give --root DIR or set PROJECT_SCRATCH=DIR",
                setting="root",
            )
        return root

    @property
    def project_dir(self) -> str:
        """Where commands run, absolute."""
        return self.text("project_dir")

    def spool_dir(self, which: str = "") -> str:
        """A spool's folder.

        Args:
            which: ``outer`` or ``gpu``; empty for the spool of the task that this process is part
                of, and for the outer one elsewhere.

        Raises:
            ConfigError: Nothing says where it is.
        """
        if not which and (of_task := self.text("spool.of_task")):
            return of_task
        return self.text("spool.gpu_dir" if which == "gpu" else "spool.dir") or self.root

    @property
    def telemetry_dir(self) -> str:
        """Where telemetry is.

        Raises:
            ConfigError: Nothing says where.
        """
        return self.text("telemetry.dir") or self.root  # which raises where there is neither


def load(
    flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """Finds every setting's value.

    Args:
        flags: Values of command-line options by setting name.
        environ: The environment; this process's own if None.

    Raises:
        UsageError: A flag's value is wrong.
        ConfigError: A value, a file or a key is wrong; the message says which and where.
    """
    flags = flags or {}
    environ = os.environ if environ is None else environ
    layers = [_from_flags(flags), _from_environment(environ)]
    project = _first(layers, "project_dir") or Value(os.getcwd(), "the current folder")
    layers.append(_from_project(str(project.value), checked=project.source))
    site = _first(layers, "site")
    if site is not None and site.value:
        from fleetcraft.config.yaml_file import read_site_profile

        layers.append(read_site_profile(str(site.value), site.source))
    values = {
        setting.name: _first(layers, setting.name) or Value(setting.default, "default")
        for setting in SETTINGS
    }
    values["project_dir"] = project
    return Config(_derived(values, root_is_flag="root" in flags))


def _first(layers: list[dict[str, Value]], name: str) -> Value | None:
    return next((layer[name] for layer in layers if name in layer), None)


def _from_flags(flags: Mapping[str, str]) -> dict[str, Value]:
    found = {}
    for name, text in flags.items():
        option = f"--{name.rpartition('.')[2].removesuffix('_s').replace('_', '-')}"
        try:
            found[name] = Value(read_text(BY_NAME[name], text, option), option)
        except ConfigError as error:
            raise UsageError(error.message, hint=error.hint, **error.facts) from error
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    found = {}
    for setting in SETTINGS:
        for variable in setting.variables:
            text = environ.get(variable)
            if text:  # an empty variable is an unset one, as in most shell scripts
                unit = 60.0 if variable in _MINUTES else 1.0
                value = read_text(setting, text, variable, unit_s=unit)
                found[setting.name] = Value(value, f"environment {variable}")
                break
    return found


def _from_project(project: str, *, checked: str) -> dict[str, Value]:
    if not os.path.isdir(project):
        raise ConfigError(
            f"no project directory at {project!r} ({checked})",
            hint="make it, or name another with --project-dir",
            path=project,
        )
    path = os.path.join(project, FILE_NAME)
    if not os.path.lexists(path):
        return {}
    from fleetcraft.config.yaml_file import read_settings_file

    return read_settings_file(path)


def _derived(values: dict[str, Value], *, root_is_flag: bool) -> dict[str, Value]:
    from fleetcraft.layout import Scratch

    if root_is_flag:
        # A root that was typed means this whole tree, whatever the environment or a file say of
        # single spools; they may be those of another tree.
        for name in _OF_A_TREE:
            values[name] = Value(None, "default")
    if values["root"].value is None:
        for name in ("spool.of_task", "spool.dir", "spool.gpu_dir"):
            if spool := values[name].value:
                values["root"] = Value(os.path.dirname(str(spool)), f"the parent of {name}")
                break
    if values["root"].value is not None:
        scratch = Scratch(str(values["root"].value))
        for name, folder in (
            ("spool.dir", scratch.outer),
            ("spool.gpu_dir", scratch.inner),
            ("telemetry.dir", scratch.telemetry),
            ("batch.table", scratch.batch_table),
        ):
            if values[name].value is None:
                values[name] = Value(folder, "derived from root")
    return values


def shipped(*parts: str) -> str:
    """The path of something in ``infra``: beside the package in a checkout, in it in a wheel."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "infra", *parts)
    beside = os.path.join(os.path.dirname(package), "infra", *parts)
    return inside if os.path.exists(inside) else beside


def read_text(setting: Setting, text: str, where: str, *, unit_s: float = 1.0) -> Scalar:
    """Reads a value that came as text, from an option or a variable.

    Args:
        setting: Its row.
        text: What was given.
        where: The option or variable, for the message.
        unit_s: Seconds that a bare number counts.

    Raises:
        ConfigError: The text is no such value.
    """
    value: Scalar = text
    if setting.kind == "path":
        value = os.path.abspath(os.path.expanduser(text)) if text else None
    elif setting.kind in ("seconds", "count"):
        value = _number(text, unit_s, whole=setting.kind == "count")
    elif setting.kind == "flag":
        value = FLAGS.get(text.strip().lower())
    if value is None or not fits(setting, value):
        raise wrong_value(setting, where, repr(text))
    return value


def _number(text: str, unit_s: float, *, whole: bool) -> float | int | None:
    try:
        return int(text) if whole else float(text) * unit_s
    except ValueError:
        pass
    try:
        return None if whole else float(parse_duration_s(text))
    except FleetError:
        return None


def fits(setting: Setting, value: str | float | int | bool) -> bool:
    """Whether a value of the right type is also in range."""
    if isinstance(value, str):
        if "\0" in value:  # no path, name or word of the system can hold one
            return False
        return _SLOTS.fullmatch(value) is not None if setting.kind == "slots" else bool(value)
    return setting.least <= value <= LONGEST_WAIT_S  # also of counts; nan is in no range


def wrong_value(setting: Setting, where: str, found: str, **facts: object) -> ConfigError:
    """The error for a value of another type or out of range."""
    expected = _EXPECTED[setting.kind]
    if setting.kind in ("seconds", "count") and setting.least:
        expected += f", at least {setting.least:g}"
    return ConfigError(
        f"{where}: {setting.name} is {found}, expected {expected}",
        hint=f"{setting.name}: {setting.doc}",
        key=setting.name,
        found=found,
        expected=expected,
        **facts,
    )
