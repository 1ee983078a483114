"""``fleetcraft evidence freeze``: the manifest of a folder.

Invariant: a manifest that was written is never replaced, and what the policy refuses is named.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.evidence.kept import kept_room, require_room
from fleetcraft.cli.output import print_json, print_text, reading_bar
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.evidence.records import NAME, Kind

if TYPE_CHECKING:
    from fleetcraft.evidence.files.manifest import Manifest

_EXAMPLES = """
fleetcraft evidence freeze results/ --name sweep-1
fleetcraft evidence freeze results/ -o sweep-1.manifest.json
fleetcraft evidence freeze results/ --name sweep-1 --kind 'clips/*=video' --kind '*.txt=log'
"""
_EXITS = """
0 frozen, or frozen before with the same files
2 a bad name or kind
3 nothing says where to keep it: no scratch tree, and no -o
7 something that a manifest refuses, a file that changed meanwhile, or the name has other files
"""
_KINDS = ", ".join(kind.value for kind in Kind)


@click.command(cls=FleetCommand, name="freeze", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="DIR")
@click.option("--name", metavar="NAME", help="Keep it under this name (that of the folder).")
@click.option("-o", "--out", metavar="FILE", help="Write it to this file.")
@click.option(
    "--kind", "kinds", multiple=True, metavar="GLOB=KIND", help=f"What files are: {_KINDS}."
)
@pass_session
def freeze_command(
    session: Session, *, folder: str, name: str | None, out: str | None, kinds: tuple[str, ...]
) -> None:
    """Write the manifest of a folder: size, hash, kind and producer of every file.

    The manifest is kept in the scratch tree under NAME, or written to FILE, or both. Symbolic
    links, special files, names that differ only in case, and names that are no plain text are
    refused, each named. Kinds come from --kind, the first that matches; then from records beside
    the files; then from schemas, headers and suffixes. Producers come from .origin.json files and
    from result records, those in the folder and those of the scratch tree.
    """
    from fleetcraft.evidence.files.keeping import keep_manifest, relative_inside, write_new
    from fleetcraft.evidence.files.manifest import check_name, make_manifest
    from fleetcraft.evidence.files.producers import files_of_results
    from fleetcraft.files import FileSystem
    from fleetcraft.view.evidence_files import manifest_shape, render_manifest

    called = check_name(name) if name is not None else _name_of(folder)
    globs = [_kind(text) for text in kinds]
    known = kept_room(session)
    keeps = name is not None and (out is None or known is not None)
    room = require_room(session) if keeps or out is None else None
    places = [out] if out else []
    places += [room.manifest(called)] if room is not None else []
    inside = [path for place in places if (path := relative_inside(place, folder))]
    with reading_bar() as progress:
        manifest = make_manifest(
            folder,
            name=called,
            kinds=globs,
            records=files_of_results(known) if known is not None else (),
            left_out=inside,
            progress=progress,
        )
    files: dict[str, bool] = {}
    if room is not None:
        _, files[room.manifest(called)] = keep_manifest(room, manifest, folder)
    if out:
        _, files[out] = write_new(FileSystem(), os.path.abspath(out), manifest, folder)
    unmatched = _unmatched(manifest, globs)
    if session.json:
        print_json(manifest_shape(manifest, folder=folder, files=files, unmatched=unmatched))
    else:
        print_text(render_manifest(manifest, folder=folder, files=files, unmatched=unmatched))


def _name_of(folder: str) -> str:
    name = os.path.basename(os.path.realpath(folder))
    return name if NAME.fullmatch(name) else "manifest"


def _kind(text: str) -> tuple[str, Kind]:
    glob, equals, word = text.rpartition("=")
    if not equals or not glob or word not in {kind.value for kind in Kind}:
        raise UsageError(
            f"--kind: not GLOB=KIND: {text!r}; nothing was written",
            hint=f"--kind 'clips/*=video'; kinds are {_KINDS}",
            text=text,
        )
    return glob, Kind(word)


def _unmatched(manifest: Manifest, globs: list[tuple[str, Kind]]) -> list[str]:
    from fleetcraft.evidence.files.policy import kind_by_glob

    return [
        f"{glob}={kind.value}"
        for glob, kind in globs
        if not any(kind_by_glob(entry.path, [(glob, kind)]) for entry in manifest.files)
    ]
