"""Which GPUs a worker may use, with a driver that answers and without one."""

from __future__ import annotations

import pytest

from fleetcraft.errors import DeviceError
from fleetcraft.gpu import nvml

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"]


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise DeviceError("the NVIDIA driver does not answer: a test says so")

    monkeypatch.setattr(nvml, "_uuids", fail)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_uuids", lambda: UUIDS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("no_driver")
def test_without_driver_the_entries_of_the_variable_are_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 2, GPU-feed ,3")
    assert nvml.visible_gpus() == ["2", "GPU-feed", "3"]


@pytest.mark.usefixtures("no_driver")
def test_without_driver_and_variable_there_is_an_error_not_an_empty_list() -> None:
    with pytest.raises(DeviceError, match="driver does not answer"):
        nvml.visible_gpus()


@pytest.mark.parametrize("text", ["", " ", ",", "-1", "NoDevFiles", "-1,0"])
@pytest.mark.parametrize("fixture", ["driver", "no_driver"])
def test_a_variable_that_names_no_device_means_no_gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fixture: str, text: str
) -> None:
    request.getfixturevalue(fixture)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert nvml.visible_gpus() == []


@pytest.mark.usefixtures("driver")
def test_with_a_driver_all_of_its_gpus_are_visible() -> None:
    assert nvml.visible_gpus() == UUIDS


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2,0", [UUIDS[2], UUIDS[0]]),
        ("GPU-bbbb", [UUIDS[2]]),
        (UUIDS[1], [UUIDS[1]]),
        ("0,-1,1", [UUIDS[0]]),  # CUDA sees nothing after the first invalid entry
        ("MIG-0123", ["MIG-0123"]),
    ],
)
def test_entries_become_uuids(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert nvml.visible_gpus() == expected


@pytest.mark.usefixtures("driver")
def test_an_index_that_the_driver_does_not_have_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
    with pytest.raises(DeviceError, match="names GPU 7, but the driver shows 3"):
        nvml.visible_gpus()
