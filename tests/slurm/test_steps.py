"""The words of a step's srun and its environment: no Slurm runs here."""

from __future__ import annotations

from fleetcraft.slurm.steps import one_per_node, step_environment


def test_a_step_gets_no_option_of_the_whole_job_from_its_environment() -> None:
    env = step_environment(
        {
            "SLURM_GPUS": "5",
            "SLURM_NTASKS": "8",
            "SLURM_CPUS_PER_TASK": "3",
            "SLURM_MEM_PER_NODE": "100",
            "SLURM_STEP_ID": "0",
            "SLURM_JOB_NUM_NODES": "4",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_GPUS": "0,1",
            "SLURM_CONF": "/etc/slurm.conf",
            "SLURMD_NODENAME": "n1",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "HOME": "/home/me",
        },
        FLEET_RANK="0",
    )
    slurm = {name for name in env if name.startswith("SLURM")}
    assert slurm == {
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_GPUS",
        "SLURM_CONF",
        "SLURM_EXIT_ERROR",
        "SLURM_EXIT_IMMEDIATE",
    }
    assert env["FLEET_RANK"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_gpus_that_a_user_chose_where_slurm_gives_none_are_kept() -> None:
    assert step_environment({"CUDA_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_step_has_one_process_on_each_of_its_nodes_and_all_that_these_have() -> None:
    words = one_per_node(2, name="x", directory="/p", gpus=3, overlap=True, nodes=["n1", "n2"])
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2"} <= set(words)
    assert {"--gres=gpu:3", "--mem=0", "--overlap"} <= set(words)


def test_a_step_for_which_slurm_chooses_nodes_and_gpus_names_neither() -> None:
    words = one_per_node(2, name="x", directory="/p", gpus=None, overlap=False)
    assert not [word for word in words if word.startswith(("--nodelist", "--gres", "--overlap"))]
