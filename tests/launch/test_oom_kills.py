"""What the kernel counts for this cgroup: read from its files, wherever they are."""

import pytest

from ampsweep.launch.processes import num_oom_kills

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"proc/self/cgroup": "0::/user/me\n", "sys/fs/cgroup/user/me/memory.events": EVENTS}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": EVENTS}, 2),
        (
            {
                "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
                "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/user/memory.events": EVENTS,
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/docker/a\n0::/\n",
                "sys/fs/cgroup/memory/docker/a/memory.oom_control": CONTROL,
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/docker/unseen\n",
                "sys/fs/cgroup/memory/memory.oom_control": CONTROL,
            },
            5,
        ),
        ({"sys/fs/cgroup/memory.events": "max 12\n"}, None),
        ({}, None),
    ],
    ids=["v2", "v2 in a container", "v2 in a step of Slurm", "v1", "v1 in a container", "an old kernel", "no cgroups"],
)
def test_kills_are_counted_where_the_system_counts_them(files, count, tmp_path):
    assert num_oom_kills(write(tmp_path, files)) == count
    assert num_oom_kills() is None or num_oom_kills() >= 0
