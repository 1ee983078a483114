"""``fleetcraft telemetry summary``: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet
from tests.telemetry.journals import Launch, depth, iso
from tests.telemetry.trees import inventory, line, lines, write_file

T = 1_800_000_000.0
END = "2027-01-15T08:05:00"


@pytest.fixture
def traces(fleet: Fleet) -> Path:
    """Two hosts, one at work, of a fleet whose spools are drained."""
    folder = fleet.root / "telemetry"
    sidecar = {"interval_s": 30, "started_at": iso(T - 60), "gpus": inventory(0, 1)}
    for node, util in (("busy", 90), ("idle", 0)):
        rows = lines(T + 30, 10, util_pct=util) + lines(T + 30, 10, gpu_index=1, util_pct=0)
        write_file(folder, node, rows, sidecar=sidecar)
    return folder


def tell(fleet: Fleet) -> None:
    """Journals of both spools."""
    from fleetcraft.spool.tree import SpoolTree

    for spool in ("taskq", "taskq_gpu"):
        launch = Launch(SpoolTree(str(fleet.root / spool)), T - 9, host="busy", gpus=2)
        launch.write("arrive", T - 9, slots=1, host="busy", job="7", gpus=2)
        launch.write("depth", T + 290, **depth(done=5))


def test_a_person_reads_the_span_the_sentence_and_the_fleet_first(
    fleet: Fleet, traces: Path
) -> None:
    tell(fleet)
    text = fleet.ok("telemetry", "summary", "--end", END).out.splitlines()
    assert text[0] == "2027-01-15T08:00:00Z to 2027-01-15T08:05:00Z, UTC time (5 min 00 s)"
    assert text[1] == "4 GPUs allocated, 1 working, 3 resident idle; both spools drained"
    whole = "\n".join(text)
    assert "coverage     100.0 %: 40 of 40 samples; 4 GPUs reporting of 4 allocated" in whole
    assert "mean 22.5 %, max 90.0 %; active 25.0 % of samples (at 5 % or more)" in whole
    assert "0.090 kWh over 0.30 GPU h (trapezoid, gaps left out); 300 W mean a GPU" in whole
    hosts = text[text.index("hosts, least active first") + 2 :]
    assert hosts[0].split()[0] == "idle"
    assert hosts[1].split()[0] == "busy"


def test_a_program_reads_the_same_by_gpu_host_and_fleet(fleet: Fleet, traces: Path) -> None:
    tell(fleet)
    value = fleet.ok("telemetry", "summary", str(traces), "--window", "5m", "--end", END,
                     "--json").json  # fmt: skip
    assert value["schema"] == "fleetcraft.telemetry_summary/1"
    assert (value["window_s"], value["zone"], value["end"]) == (300, "UTC", f"{END}Z")
    fleet_value = value["fleet"]
    assert (fleet_value["samples"], fleet_value["coverage_fraction"]) == (40, 1.0)
    assert fleet_value["active_fraction"] == 0.25
    assert fleet_value["mean_util_pct"] == 22.5
    assert [host["host"] for host in value["hosts"]] == ["busy", "idle"]
    assert value["hosts"][0]["active_fraction"] == 0.5
    assert len(value["gpus"]) == 4
    assert value["gpus"][0]["mean_util_pct"] == 90
    assert value["gpus"][0]["state"] == "working"
    assert value["queue"]["words"] == "both spools drained"


def test_lists_are_bounded_and_say_how_many_were_left_out(fleet: Fleet, traces: Path) -> None:
    out = fleet.ok("telemetry", "summary", "--end", END, "--limit", "1").out
    assert "... and 1 more hosts" in out


def test_a_window_without_a_row_says_when_the_newest_one_was(fleet: Fleet, traces: Path) -> None:
    called = fleet("telemetry", "summary", "--end", "2027-01-15T12:00:00Z", "--json")
    assert called.code == 1
    assert called.json["fleet"]["samples"] == 0
    assert called.json["fleet"]["mean_util_pct"] is None
    assert called.error["hint"].endswith("--end 2027-01-15T08:05:00Z")
    fleet.ok("telemetry", "summary", "--end", "2027-01-15T08:05:00Z")


def bare(t_s: float, count: int, step_s: float = 30.0, **cells: object) -> list[str]:
    """Rows of a host that has no GPU."""
    told = {
        **dict.fromkeys(("mem_used_mib", "mem_total_mib", "util_pct", "power_w"), ""),
        **{"gpu_index": "", "gpu_uuid": "", "kind": "host", "status": "no_nvml"},
        **{"host_mem_total_mib": 65536, "host_mem_used_mib": 16384, "host_load": 1.5},
    }
    return lines(t_s, count, step_s, **{**told, **cells})


def test_hosts_without_a_gpu_are_told_with_memory_load_and_the_reason(fleet: Fleet) -> None:
    tell(fleet)
    rows = bare(T + 30, 5) + bare(T + 180, 5, host_mem_used_mib=32768, host_load=0.5)
    write_file(fleet.root / "telemetry", "laptop", rows, sidecar={"interval_s": 30})
    called = fleet.ok("telemetry", "summary", "--end", END, "--json")
    value = called.json
    assert value["fleet"]["samples"] == 0
    assert value["fleet"]["mean_util_pct"] is None
    (host,) = value["hosts_without_gpu"]
    assert (host["host"], host["samples"], host["coverage_fraction"]) == ("laptop", 10, 1.0)
    assert host["statuses"] == {"no_nvml": 10}
    assert host["memory_used_mib"] == {"mean": 24576, "max": 32768}
    assert (host["load"], host["memory_total_mib"]) == ({"mean": 1.0, "max": 1.5}, 65536)
    text = fleet.ok("telemetry", "summary", "--end", END).out
    assert "laptop  100.0 %: 10 of 10  24.0 GiB      32.0 GiB  64.0 GiB  1.00" in text


def test_no_gpu_on_any_host_is_a_sentence_with_the_reason_and_the_queue(fleet: Fleet) -> None:
    for number, status in enumerate(("no_nvml", "no_nvml", "timeout")):
        kind = "heartbeat" if status == "timeout" else "host"
        rows = bare(T + 30, 10, status=status, kind=kind)
        write_file(fleet.root / "telemetry", f"n{number}", rows)
    text = fleet.ok("telemetry", "summary", "--end", END).out
    words = "no GPU was seen on 3 hosts (no NVML, the driver does not answer); queue not known"
    assert text.splitlines()[1] == words


def test_a_host_whose_gpu_was_seen_later_is_none_without_a_gpu(fleet: Fleet, traces: Path) -> None:
    rows = bare(T + 30, 5, status="driver_not_loaded") + lines(T + 180, 5)
    write_file(traces, "late", rows)
    write_file(traces, "laptop", bare(T + 30, 10))
    value = fleet.ok("telemetry", "summary", "--end", END, "--json").json
    assert [host["host"] for host in value["hosts_without_gpu"]] == ["laptop"]
    assert value["sentence"].startswith("4 GPUs allocated (not known for 1 hosts), 2 working")
    assert "hosts without a GPU\n" in fleet.ok("telemetry", "summary", "--end", END).out


def test_a_frozen_window_is_stamped_with_the_journals_it_was_joined_from(
    fleet: Fleet, traces: Path, tmp_path: Path
) -> None:
    tell(fleet)
    frozen = str(tmp_path / "w.json")
    fleet.ok("telemetry", "summary", "--end", END, "--freeze", frozen)
    beside = tmp_path / "w.json.origin.json"
    first = beside.read_bytes()
    origin = json.loads(first)
    assert (origin["kind"], origin["made_by"]) == ("summary", "fleetcraft telemetry summary")
    assert {source["kind"] for source in origin["sources"]} == {"journal"}
    fleet.ok("telemetry", "summary", "--end", END, "--freeze", frozen)
    assert beside.read_bytes() == first


def test_a_window_without_a_gpu_is_not_frozen(fleet: Fleet, tmp_path: Path) -> None:
    write_file(fleet.root / "telemetry", "laptop", bare(T + 30, 10))
    called = fleet("telemetry", "summary", "--end", END, "--freeze", str(tmp_path / "w.json"))
    assert called.code == 1
    assert "no row of a GPU" in called.err
    assert "nothing was frozen" in called.err
    assert list(tmp_path.glob("*.json")) == []


def test_the_newest_row_of_a_host_without_a_gpu_is_a_usable_end(fleet: Fleet) -> None:
    write_file(fleet.root / "telemetry", "laptop", bare(T + 30, 10))
    called = fleet("telemetry", "summary", "--end", "2027-01-15T12:00:00Z", "--json")
    assert called.code == 1
    end = called.error["hint"].rpartition(" ")[2]
    fleet.ok("telemetry", "summary", "--end", end)


def test_journals_alone_are_told_too(fleet: Fleet) -> None:
    tell(fleet)
    (fleet.root / "telemetry").mkdir(exist_ok=True)
    text = fleet.ok("telemetry", "summary", "--end", END).out
    assert "both spools drained" in text.splitlines()[1]
    assert fleet("telemetry", "summary", "--end", "2027-01-16T12:00:00Z").code == 1


def test_the_newest_row_makes_a_usable_end_for_archives_too(fleet: Fleet, tmp_path: Path) -> None:
    text = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n"
    (tmp_path / "host01.csv").write_text(f"{text}2026/07/17 11:59:58.123,1,2,50,100\n")
    called = fleet.bare("telemetry", "summary", str(tmp_path), "--json")
    end = called.error["hint"].rpartition(" ")[2]
    assert end == "2026-07-17T11:59:58.123"
    value = fleet.bare("telemetry", "summary", str(tmp_path), "--end", end, "--json").json
    assert value["fleet"]["samples"] == 1
    assert value["queue"]["known"] is False
    assert value["sentence"].endswith("queue not known")
    assert any("own clock" in note for note in value["notes"])


def test_another_folder_is_not_joined_with_this_fleets_queue(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(fleet)
    write_file(tmp_path / "elsewhere", "n1", lines(T + 30, 10))
    monkeypatch.setenv("PROJECT_SCRATCH", str(fleet.root))
    value = fleet.bare("telemetry", "summary", str(tmp_path / "elsewhere"), "--end", END,
                       "--json").json  # fmt: skip
    assert value["queue"]["known"] is False


def test_the_spools_beside_a_telemetry_folder_are_found(fleet: Fleet, traces: Path) -> None:
    tell(fleet)
    value = fleet.bare("telemetry", "summary", str(traces), "--end", END, "--json").json
    assert value["queue"]["known"] is True


def test_one_file_of_a_telemetry_folder_has_the_same_spools(fleet: Fleet, traces: Path) -> None:
    tell(fleet)
    file, _ = sorted(traces.glob("*.csv"))
    value = fleet.bare("telemetry", "summary", str(file), "--end", END, "--json").json
    assert value["queue"]["known"] is True
    assert [host["host"] for host in value["hosts"]] == ["busy"]


def test_where_telemetry_alone_is_set_the_queue_is_not_known(
    fleet: Fleet, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(fleet)
    monkeypatch.setenv("TELEMETRY_DIR", str(traces))
    called = fleet.bare("telemetry", "summary", "--end", END, "--json")
    assert (called.code, called.json["queue"]["known"]) == (0, False)


def test_freezing_writes_once_and_verify_accepts_it(
    fleet: Fleet, traces: Path, tmp_path: Path
) -> None:
    path = tmp_path / "w.json"
    words = ("telemetry", "summary", "--end", END, "--freeze", str(path))
    assert "frozen:" in fleet.ok(*words).err
    before = path.read_bytes()
    fleet.ok(*words)
    assert path.read_bytes() == before
    assert fleet.ok("telemetry", "verify", str(path)).out.startswith("verified")
    write_file(traces, "late", [line(T + 60)])
    assert fleet(*words).code == 7
    assert path.read_bytes() == before


def test_a_window_without_a_row_is_not_frozen(fleet: Fleet, traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    called = fleet("telemetry", "summary", "--freeze", str(path))
    assert called.code == 1
    assert "nothing was frozen" in called.err
    assert not path.exists()


@pytest.mark.parametrize(
    "words", [("--window", "soon"), ("--window", "0"), ("--end", "noon"), ("--interval", "0"),
              ("--interval", "nan")]
)  # fmt: skip
def test_what_is_no_time_is_a_usage_error(
    fleet: Fleet, traces: Path, words: tuple[str, ...]
) -> None:
    assert fleet("telemetry", "summary", *words).code == 2


@pytest.mark.parametrize(
    "words", [("inspect",), ("summary",), ("plot", "--out", "x"), ("export", "--out", "x")]
)
def test_a_folder_that_is_not_there_is_the_same_mistake_for_every_command(
    fleet: Fleet, words: tuple[str, ...]
) -> None:
    called = fleet("telemetry", *words, "/nowhere/at/all")
    assert called.code == 2
    assert called.err.startswith("error: no telemetry at /nowhere/at/all")
    assert fleet("telemetry", *words).code == 3  # of the scratch tree, which has none yet


def test_without_a_scratch_tree_and_a_folder_it_says_what_is_missing(bare_fleet: Fleet) -> None:
    assert bare_fleet.bare("telemetry", "summary").code == 3


def test_names_from_files_cannot_paint_the_terminal(fleet: Fleet) -> None:
    folder = fleet.root / "telemetry"
    rows = lines(T + 30, 10, status="\x1b[31mred")
    write_file(folder, "n\x1b[2J1", rows)
    out = fleet.ok("telemetry", "summary", "--end", END).out
    assert "\x1b" not in out
    assert "\\x1b" in out


def test_mfu_by_family_is_shown_with_what_it_is_of(fleet: Fleet, traces: Path) -> None:
    from fleetcraft.spool.tree import SpoolTree

    launch = Launch(SpoolTree(str(fleet.root / "taskq_gpu")), T - 9, host="busy", gpus=2)
    launch.write("arrive", T - 9, slots=2, slot_gpus=["GPU-0", "GPU-1"])
    claim = launch.run("one", T, family="wan")
    launch.write("depth", T + 290, **depth())
    (traces / "forwards").mkdir(mode=0o700)
    text = json.dumps({"at": iso(T + 100), "forwards": 5, "flop": 300 * 312e12 * 0.25})
    (traces / "forwards" / f"7.0.0.{claim}.jsonl").write_text(f"{text}\n")
    out = fleet.ok("telemetry", "summary", "--end", END).out
    assert "estimated MFU by family" in out
    (row,) = (line for line in out.splitlines() if line.strip().startswith("wan"))
    assert "25.0 %" in row
    assert "300.0 GPU s" in row
    assert "A100" in row


def test_files_about_hosts_alone_are_not_taken_for_idle_gpus(fleet: Fleet) -> None:
    rows = lines(T + 30, 10, kind="host", gpu_index="", gpu_uuid="", util_pct="", status="no_nvml")
    write_file(fleet.root / "telemetry", "n1", rows)
    called = fleet("telemetry", "summary", "--end", END)
    assert called.code == 0
    assert called.out.splitlines()[1].startswith("no GPU was seen on 1 host (no NVML)")
    assert "idle" not in called.out
