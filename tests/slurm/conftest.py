"""Fixtures of tests that need a real Slurm: one cluster for each process that runs tests.

Not here: what a cluster can do for a test; that is in cluster.py.
Invariant: a test finds all nodes on and idle and no job, whatever the one before it did.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    """Four nodes with two GPUs each, started for the first test that asks."""
    if lacking := missing():
        pytest.skip(lacking)
    running = Cluster("--gpus-per-node", "2")
    yield running
    running.close()


@pytest.fixture(scope="session")
def session_accounting_cluster() -> Iterator[Cluster]:
    """The same with accounting: the account is 'proj', and this user is in it."""
    if lacking := missing(accounting=True):
        pytest.skip(lacking)
    running = Cluster("--gpus-per-node", "2", "--accounting")
    yield running
    running.close()


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without accounting; brought to rest after the test."""
    yield session_cluster
    session_cluster.come_to_rest()


@pytest.fixture
def accounting_cluster(session_accounting_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with accounting; brought to rest after the test."""
    yield session_accounting_cluster
    session_accounting_cluster.come_to_rest()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """A test that failed shows what the controller said last."""
    report: pytest.TestReport = yield
    if report.failed:
        for used in vars(item).get("funcargs", {}).values():
            if isinstance(used, Cluster):
                report.sections.append(("end of slurmctld.log", used.log_tail()))
    return report
