"""SIGHUP: other policies without a restart, and wrong settings change nothing."""

import signal
from pathlib import Path
from typing import Any

from tests.support.logged_events import logged_events
from tests.support.processes import Gateway, House, until


def said(gateway: Gateway, event: str) -> list[dict[str, Any]]:
    return logged_events(gateway.child.log, event)


def test_a_running_gateway_takes_up_other_policies_and_refuses_wrong_ones(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("")
    with House(tmp_path) as house:
        gateway = house.gateway("--config", str(file))
        file.write_text('[dispatch]\npolicy = "session"\ntotal_s = 60\n')
        gateway.child.signal(signal.SIGHUP)
        until("it is said what needs a restart", lambda: said(gateway, "settings_need_a_restart"))
        until("the settings are taken up", lambda: said(gateway, "settings_reloaded"))
        assert said(gateway, "settings_reloaded")[-1]["changed"] == ["dispatch.policy"]
        assert said(gateway, "settings_need_a_restart")[-1]["settings"] == ["dispatch.total_s"]
        file.write_text('[dispatch]\npolicy = "dearest"\n')
        gateway.child.signal(signal.SIGHUP)
        until("wrong settings are refused", lambda: said(gateway, "settings_kept"))
        assert "'dearest'" in said(gateway, "settings_kept")[-1]["reason"]
        assert gateway.serving()
