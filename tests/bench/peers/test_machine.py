import os
import subprocess
import sys

from tests.bench.peers import machine


def test_what_is_started_while_pinned_stays_on_that_core() -> None:
    core, before = machine.cores().load, os.sched_getaffinity(0)
    with machine.pinned(core):
        code = "import os; print(os.sched_getaffinity(0))"
        seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == str({core})
    assert os.sched_getaffinity(0) == before


def test_the_far_end_of_a_tunnel_is_on_another_core_where_the_gateway_is_apart() -> None:
    shared, apart = machine.cores(), machine.cores(gateway_apart=True)
    assert shared.far == shared.peers == apart.peers
    usable = os.sched_getaffinity(0)
    assert apart.load == shared.load
    assert (apart.far == apart.load) == (len(usable) <= 2)
    assert (apart.far != apart.peers) == (len(usable) > 1)


def test_a_family_is_a_process_and_all_below_it() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'echo; read _; :'; :"], stdin=-1, stdout=-1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        found = machine.family(child.pid)
        child.stdin.close()
    assert found[0] == child.pid
    assert len(found) == 2


def test_work_of_others_is_what_neither_we_nor_our_children_did() -> None:
    before = machine.Usage(100.0, 10.0, 0.0)
    assert machine.Usage(108.0, 15.0, 2.0).others_cores(before) == 1.5
    assert machine.Usage(101.0, 12.0, 2.0).others_cores(before) == 0.0
    now = machine.usage([os.getpid()])
    assert now.busy_s > 0
    assert now.ours_s > 0
