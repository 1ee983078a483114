"""Skills are in form, and every command in them and in AGENTS.md is one that the program knows.

Commands are parsed and never run: by the command line's own parsers, as far as the last option. A
value in CAPITALS, with ``$``, ``...`` or a glob stands for any value. In running text a command may
leave out what it needs, since it is often only named there; an unknown word is a failure anywhere.

Not here: whether commands do what is said of them (test_documents.py), and links.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from fleetcraft.cli.main import cli
from fleetcraft.cli.session import Session
from fleetcraft.errors import FleetError

REPO = Path(__file__).resolve().parents[2]
SKILLS = sorted(path for path in (REPO / "skills").iterdir() if path.is_dir())
AGENTS = REPO / "AGENTS.md"
PAGES = [AGENTS, *(path / "SKILL.md" for path in SKILLS)]
HEADINGS = (
    "When to read this",
    "Check first",
    "Steps",
    "How to know that it worked",
    "Pitfalls",
    "Where to read on",
)
LEAST_DESCRIPTION = 40
_FENCE = re.compile(r"^\s*```(\S*)\s*$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_PLACEHOLDER = re.compile(r".*[$*?\[\]<>{}…].*|.*\.\.\..*|[-+:@=/.,0-9]*[A-Z][A-Z0-9_.:@=/,x-]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_ARITHMETIC = re.compile(r"\$\(\(.*?\)\)")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_DESCRIPTOR = re.compile(r"(^|\s)[0-2]([<>])")
_BEFORE_A_COMMAND = frozenset({"!", "time", "nohup", "exec", "then", "do", "else", "if", "while"})
_OURS = re.compile(r"(^|[\s;&|(])(fleetcraft |bin/)")
_ELLIPSES = frozenset({"...", "…"})


@dataclass(frozen=True, kw_only=True)
class Named:
    """A command that a page names, and whether it stands in running text."""

    text: str
    line: int
    in_text: bool


# ------------------------------------------------------------------------------------ the form


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.name)
def test_a_skill_is_valid_by_the_public_format(skill: Path) -> None:
    skills_ref = pytest.importorskip("skills_ref", reason="skills-ref is not installed")
    assert skills_ref.validate(skill) == []


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.name)
def test_a_skill_has_its_name_a_description_and_the_headings_in_order(skill: Path) -> None:
    assert complaints_about_form(skill) == []


def test_agents_md_leads_to_every_skill() -> None:
    links = re.findall(r"\]\((skills/[^)#]+)", AGENTS.read_text())
    missing = [f"AGENTS.md does not link skills/{skill.name}/SKILL.md" for skill in SKILLS
               if f"skills/{skill.name}/SKILL.md" not in links]  # fmt: skip
    assert missing == []


def complaints_about_form(skill: Path) -> list[str]:
    """What is wrong with the form of one skill, each with its place."""
    page = skill / "SKILL.md"
    if not page.is_file():
        return [f"{where(page)}: there is no such file"]
    lines = page.read_text().splitlines()
    return [f"{where(page)}:{number}: {reason}" for number, reason in _form(lines, skill.name)]


def _form(lines: list[str], folder: str) -> Iterator[tuple[int, str]]:
    name, description = (_front(lines, key) for key in ("name", "description"))
    if name[1] != folder:
        yield name[0], f"name is {name[1]!r}, the folder is {folder!r}"
    if len(description[1]) < LEAST_DESCRIPTION:
        yield description[0], f"the description has less than {LEAST_DESCRIPTION} characters"
    found = [(n, line[3:].strip()) for n, line in _outside_fences(lines) if line.startswith("## ")]
    wanted = [title for _, title in found if title in HEADINGS]
    if wanted != list(HEADINGS):
        missing = [title for title in HEADINGS if title not in wanted]
        yield 1, f"headings: missing {missing}" if missing else f"headings: the order is {wanted}"
    yield from _pitfalls(lines, dict((title, n) for n, title in found).get("Pitfalls", 0))


def _front(lines: list[str], key: str) -> tuple[int, str]:
    end = lines.index("---", 1) if lines[:1] == ["---"] and "---" in lines[1:] else 0
    for number, line in enumerate(lines[:end], 1):
        if line.startswith(f"{key}:"):
            return number, line.partition(":")[2].strip()
    return 1, ""


def _pitfalls(lines: list[str], start: int) -> Iterator[tuple[int, str]]:
    if not start:
        return
    rows = []
    for number, line in enumerate(lines[start:], start + 1):
        if line.startswith("#"):
            break
        if line.startswith("|"):
            rows.append((number, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]))
    if not rows or rows[0][1] != ["symptom", "cause", "fix"] or len(rows) < 3:
        yield start, "Pitfalls has no table of symptom, cause, fix"
        return
    for number, cells in rows[2:]:
        if len(cells) != 3 or not all(cells):
            yield number, f"a pitfall needs a symptom, a cause and a fix; found {cells}"


def _outside_fences(lines: list[str]) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(lines, 1):
        if _FENCE.match(line) or (fenced and line.strip() == "```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


# -------------------------------------------------------------------------------- the commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_command_of_a_page_is_one_that_the_program_knows(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert page.is_file(), f"{where(page)}: there is no such file"
    let_placeholders_pass(monkeypatch)
    wrong = [
        f"{where(page)}:{named.line}: {reason}: {named.text}"
        for named in commands_of(page.read_text())
        if (reason := why_wrong(named.text, in_text=named.in_text))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "in_text", "said"),
    [
        ("fleetcraft status", False, ""),
        ("fleetcraft enqueue -n gen-17 --retries 2 -- 'python gen.py'", False, ""),
        ("fleetcraft launch -N N --time HH:MM:SS", False, ""),
        ("fleetcraft train supervise $RUN.yaml", False, ""),
        ("FLEET_X=1 fleetcraft status --json | jq .counts && fleetcraft logs NAME", False, ""),
        ("fleetcraft telemetry summary traces --window 300 > window.txt 2>&1", False, ""),
        ("fleetcraft status --help", False, ""),
        ("fleetcraft launch -N 1 --idle 2 > launched.txt", False, ""),
        ("fleetcraft launch -N $(nproc) --idel 2", False, "--idel"),
        ("n=$(fleetcraft status --jsn)", False, "--jsn"),
        ("fleetcraft enqueue -n $((1 + 2)) 'echo \"a b\" # c'", False, ""),
        ("fleetcraft enqueue -n a 'echo", False, "quotation"),
        ("fleetcraft status  # exit 5", False, ""),
        ("fleetcraft show", True, ""),
        ("fleetcraft telemetry", True, ""),
        ("fleetcraft caches show|check|env", True, ""),
        ("fleetcraft enqueue --after", True, ""),
        ("bin/enqueue.sh 'echo hi' hello --retries 2", False, ""),
        ("bin/gpu_telemetry.sh DIR 30", False, ""),
        ("bin/test tests/spool -k claim", False, ""),
        ("bin/*", True, ""),
        ("fleetcraft show", False, "Missing argument"),
        ("fleetcraft enqeue x", True, "no command 'enqeue'"),
        ("fleetcraft telemetry sumary", True, "no command 'sumary' in telemetry"),
        ("fleetcraft status --jsn", True, "--jsn"),
        ("true; fleetcraft status --jsn", False, "--jsn"),
        ("fleetcraft enqueue --retries two -n a b", False, "'two'"),
        ("fleetcraft init one", False, "unexpected extra argument"),
        ("bin/nothing.sh", True, "no such file"),
        ("bin/gpu_telemetry.sh DIR 30 --evry 3", True, "--evry"),
        ("bin/enqueue.sh hello", False, "a command and a name"),
    ],
)
def test_a_command_is_parsed_as_the_program_would(
    text: str,
    in_text: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    let_placeholders_pass(monkeypatch)
    found = why_wrong(text, in_text=in_text)
    assert (said in found) if said else (found == "")


def test_commands_are_found_in_blocks_and_in_running_text() -> None:
    text = (
        "Say `fleetcraft status` or `ls`.\n"
        "```console\n$ fleetcraft init\nfleetcraft is no command\n"
        "$ fleetcraft enqueue \\\n> -n a b\n```\n"
        "```bash\ncat <<E\nfleetcraft no\nE\nbin/test -x\n```\n"
        "```json\nfleetcraft no\n```\n"
    )
    found = [(named.text, named.line, named.in_text) for named in commands_of(text)]
    assert found == [
        ("fleetcraft status", 1, True),
        ("fleetcraft init", 3, False),
        ("fleetcraft enqueue -n a b", 5, False),
        ("bin/test -x", 12, False),
    ]


def where(page: Path) -> str:
    return str(page.relative_to(REPO))


def commands_of(text: str) -> Iterator[Named]:
    """The commands of ours that a page names."""
    language, block = None, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if language is not None:
            if line.strip() == "```":
                yield from _of_block(language, block)
                language, block = None, []
            else:
                block.append((number, line.strip()))
        elif fence:
            language = fence[1]
        else:
            spans = (Named(text=span, line=number, in_text=True) for span in _SPAN.findall(line))
            yield from (named for named in spans if _is_ours(named.text))


def _is_ours(text: str) -> bool:
    return text.startswith(("fleetcraft ", "bin/"))


def _of_block(language: str, lines: list[tuple[int, str]]) -> Iterator[Named]:
    if language == "console":
        shown = [(n, line[2:]) for n, line in lines if line.startswith(("$ ", "> "))]
        starts = {n for n, line in lines if line.startswith("$ ")}
    elif language in ("bash", "sh"):
        shown, starts = lines, set()
    else:
        return
    whole: tuple[int, str] | None = None
    ends_at = ""
    for number, line in shown:
        if ends_at and number not in starts:
            ends_at = "" if line == ends_at else ends_at
            continue
        if heredoc := _HEREDOC.search(line):
            ends_at = heredoc[2]
        whole = (whole[0], f"{whole[1]} {line}") if whole else (number, line)
        if line.endswith("\\"):
            whole = (whole[0], whole[1][:-1].rstrip())
            continue
        if _has_an_open_quote(whole[1]):
            continue
        if _OURS.search(whole[1]):
            yield Named(text=whole[1], line=whole[0], in_text=False)
        whole = None
    if whole and _OURS.search(whole[1]):
        yield Named(text=whole[1], line=whole[0], in_text=False)


def _has_an_open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


# ----------------------------------------------------------------------------- parsing commands


def why_wrong(text: str, *, in_text: bool) -> str:
    """Why a line of shell names something that the program does not know; empty if it knows all."""
    try:
        segments = list(simple_commands(text))
    except ValueError as error:  # a quote that is not closed
        return str(error)
    for words in segments:
        if words and words[0] == "fleetcraft":
            reason = _parsed(words[1:], in_text=in_text)
        elif words and words[0].startswith("bin/"):
            reason = _launched(words, in_text=in_text)
        else:
            continue
        if reason:
            return reason
    return ""


def simple_commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a line of shell, without assignments, redirections and comments."""
    text = _ARITHMETIC.sub("$N", text)
    while inner := _SUBSTITUTION.search(text):
        yield from simple_commands(inner[1])
        text = f"{text[: inner.start()]}$SAID{text[inner.end() :]}"
    text = _DESCRIPTOR.sub(r"\1\2", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.wordchars += ":@%+,!^{}[]$…#"
    words: list[str] = []
    skip = False
    for word in lexer:
        if skip:
            skip = False
        elif word.startswith("#"):
            break
        elif set(word) <= set("<>&") and set(word) & set("<>"):
            skip = True
        elif set(word) <= set("();|&"):
            yield _without_what_stands_before(words)
            words = []
        else:
            words.append(word)
    yield _without_what_stands_before(words)


def _without_what_stands_before(words: list[str]) -> list[str]:
    while words and (_ASSIGNMENT.fullmatch(words[0]) or words[0] in _BEFORE_A_COMMAND):
        words = words[1:]
    return words


def _launched(words: Sequence[str], *, in_text: bool) -> str:
    """Why a launcher of ``bin/`` is called wrongly."""
    if "*" in words[0]:
        return "" if list(REPO.glob(words[0])) else "no such file"
    script = REPO / words[0]
    if not script.exists():
        return "no such file"
    rest = list(words[1:])
    if not script.is_file() or "--help" in rest or "-h" in rest:
        return ""
    becomes = re.search(r"^run_fleetcraft (.+)$", script.read_text(), re.MULTILINE)
    if not becomes or (in_text and not rest):
        return ""
    ours = shlex.split(becomes[1])
    if "$command" not in ours:
        return _parsed([*ours[:-1], *rest], in_text=in_text)
    if len(rest) < 2:
        return "" if in_text else "it needs a command and a name"
    ends = ours.index("$name")
    return _parsed([*ours[:ends], rest[1], *rest[2:], "--", rest[0]], in_text=in_text)


def _parsed(words: Sequence[str], *, in_text: bool) -> str:
    """Why the command line refuses these words."""
    left_out = any(word in _ELLIPSES for word in words)
    words = [word for word in words if word not in _ELLIPSES]
    try:
        _parse(cli, "fleetcraft", words, None)
    except click.exceptions.Exit:  # --help and --version
        return ""
    except click.exceptions.NoArgsIsHelpError:
        return "" if in_text else "a command is missing"
    except click.ClickException as error:
        unfinished = isinstance(error, click.MissingParameter) or (
            "requires" in error.format_message() and "argument" in error.format_message()
        )
        return "" if unfinished and (in_text or left_out) else error.format_message()
    except FleetError as error:
        return error.message
    return ""


def _parse(
    command: click.Command, name: str, words: Sequence[str], parent: click.Context | None
) -> None:
    context = command.make_context(name, list(words), parent=parent, obj=Session(json=False))
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        found_name, found, left = command.resolve_command(context, rest)
        assert found is not None
        _parse(found, found_name or "", left, context)


def let_placeholders_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that stand for any value are taken as they are; files need not be there."""
    convert = click.Parameter.type_cast_value

    def tolerant(self: click.Parameter, ctx: click.Context, value: Any) -> Any:
        if isinstance(self.type, click.Path | click.File):
            return value
        try:
            return convert(self, ctx, value)
        except (click.BadParameter, FleetError):
            told = value if isinstance(value, list | tuple) else [value]
            if told and all(isinstance(one, str) and _PLACEHOLDER.fullmatch(one) for one in told):
                return value
            raise

    monkeypatch.setattr(click.Parameter, "type_cast_value", tolerant)
