"""The command: what scripts rely on, what people read, and what is said of bad input."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from gateway.tools.simulate import register
from gateway.tools.simulate.chart import Heading, write_plot

FLEET = ["--fleet", "1*h100,1*l4"]
MIX = ["--mix", "rate=5,requests=40;a:input=500,output=20,prefix=512x2"]


def run(*args: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return CliRunner().invoke(app, ["simulate", *args], env={"TERM": "dumb", "COLUMNS": "200"})


def test_json_has_the_shape_that_scripts_rely_on() -> None:
    result = run(*FLEET, *MIX, "--policy", "cost,round-robin", "--json", "--seed", "3")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert list(told["policies"]) == ["cost", "round-robin"]
    for figures in told["policies"].values():
        assert {"requests": 40, "completed": 40, "rejected": 0}.items() <= figures.items()
        for name in ("ttft_s", "latency_s"):
            assert list(figures[name]) == ["p50", "p95", "p99"]
            assert 0 < figures[name]["p50"] <= figures[name]["p95"] <= figures[name]["p99"]
        assert figures["utilisation_cv"] >= 0
        assert figures["goodput_rps"] > 0
        assert 0 < figures["prefix_hit_rate"] < 1
    assert run(*FLEET, *MIX, "--policy", "cost,round-robin", "--json", "--seed", "3").stdout == result.stdout


def test_people_get_a_table() -> None:
    result = run(*FLEET, *MIX, "--policy", "cost")
    header, row = result.stdout.splitlines()
    assert header.split()[:3] == ["POLICY", "DONE", "REFUSED"]
    assert row.split()[:3] == ["cost", "40", "0"]
    assert "cost: 40 requests in " in result.stderr


def test_a_trace_is_scaled_in_time(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        "".join(f'{{"at_s": {at}, "input_tokens": 9, "output_tokens": 2}}\n' for at in range(20))
    )
    told = json.loads(run(*FLEET, "--trace", str(trace), "--rate", "4", "--policy", "cost", "--json").stdout)
    assert told["policies"]["cost"]["span_s"] == 4.75


def test_what_if_finds_the_smallest_fleet_that_is_enough() -> None:
    load = ["--mix", "rate=6,duration=40;a:input=3000,output=30", "--fleet", "3*l4", "--policy", "cost"]
    result = run(*load, "--what-if", "ttft_p95<3", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)["what_if"]["cost"]
    assert answer["meets"]
    assert answer["fleet"] == f"{answer['devices']}*l4"
    assert answer["goals"]["ttft_p95<3"] < 3
    assert answer["tried"][answer["fleet"]]
    assert answer["devices"] > 1
    assert answer["tried"][f"{answer['devices'] - 1}*l4"] is False
    assert answer["asked"]["fleet"] == "3*l4"
    assert answer["asked"]["meets"] is answer["tried"]["3*l4"]
    assert answer["arrivals_per_s"] == pytest.approx(6, rel=0.2)


def test_what_if_shows_the_fleet_asked_for_beside_the_one_found_and_the_rate_assumed() -> None:
    load = ["--mix", "rate=6,duration=40;a:input=3000,output=30", "--fleet", "1*l4", "--policy", "cost"]
    result = run(*load, "--rate", "2", "--what-if", "ttft_p95<3")
    assert result.exit_code == 0, result.output
    [asked] = [line.split() for line in result.stdout.splitlines() if " asked " in line]
    [found] = [line.split() for line in result.stdout.splitlines() if " found " in line]
    assert asked[:4] == ["cost", "asked", "1*l4", "no"]
    assert found[:2] == ["cost", "found"]
    assert found[3] == "yes"
    assert found[2] != "1*l4"
    assert "requests per second" in result.stderr
    assert "2 times as fast as in the traffic" in result.stderr
    assert result.stderr.count("is not enough (ttft_p95<3: ") >= 1, (
        "every fleet that is tried is told at once"
    )


def test_what_if_says_that_nothing_is_enough() -> None:
    result = run(*FLEET, *MIX, "--policy", "cost", "--requests", "2", "--what-if", "ttft_p50<0.0001")
    assert result.exit_code == 1
    assert "is not enough" in result.stderr


def test_a_plot_is_drawn_as_svg(tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    assert run(*FLEET, *MIX, "--policy", "cost,chwbl", "--plot", str(path)).exit_code == 0
    texts = [each.text for each in ET.fromstring(path.read_text()).iter() if each.tag.endswith("text")]
    assert texts.count("chwbl") == 5, "of six figures one is 0 for both: nobody was refused"
    assert {"p50", "p95", "p99", "seconds", "requests per second", "0"} <= set(texts)
    assert "Fleet: 1*h100,1*l4" in texts
    assert any(text.startswith("Traffic: mix ") and "requests" in text for text in texts if text)


def test_a_plot_is_drawn_as_png_with_pillow(tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    assert run(*FLEET, *MIX, "--policy", "cost,chwbl", "--plot", str(path)).exit_code == 0
    with Image.open(path) as image:
        assert image.width == 2 * 860
        assert {(0x1D, 0x4E, 0xD8), (0x11, 0x18, 0x27)} <= {
            colour for _, colour in (image.getcolors(1 << 24) or ())
        }


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_chart_is_of_a_file_with_any_name(tmp_path: Path, kind: str) -> None:
    trace, chart = tmp_path / "a\x01\udcff<b>", tmp_path / f"chart.{kind}"
    trace.write_text('{"at_s": 0, "input_tokens": 5, "output_tokens": 5}\n')
    assert run(*FLEET, "--trace", str(trace), "--policy", "cost", "--plot", str(chart)).exit_code == 0
    if kind == "svg":
        assert any("a??<b>" in (each.text or "") for each in ET.parse(chart).getroot())


def test_a_png_has_bars_that_are_shorter_than_a_pixel(tmp_path: Path) -> None:
    """A policy whose requests wait for minutes beside a median of milliseconds."""
    times = {"p50": 0.01, "p95": 0.02, "p99": 100.0}
    numbers = dict.fromkeys(("goodput_rps", "utilisation_cv", "prefix_hit_rate", "rejected"), 0.0)
    chart = tmp_path / "chart.png"
    write_plot(chart, {"cost": {"ttft_s": times, "latency_s": times, **numbers}}, Heading("Policies"))
    with Image.open(chart) as drawn:
        assert drawn.width == 1720


def test_without_pillow_a_png_is_refused_in_one_line_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    path = tmp_path / "chart.png"
    result = run(*FLEET, *MIX, "--plot", str(path))
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert "pip install 'trunkline[plots]'" in line
    assert result.stdout == ""
    assert not path.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([*FLEET], "either --trace FILE or --mix SPEC"),
        ([*FLEET, *MIX, "--trace", "x"], "either --trace FILE or --mix SPEC"),
        (["--fleet", "2*gpu", *MIX], "no device class is called 'gpu'"),
        ([*FLEET, *MIX, "--policy", "best"], "no policy is called 'best'"),
        ([*FLEET, *MIX, "--rate", "0"], "must be more than 0, not 0"),
        ([*FLEET, *MIX, "--model", "gpt"], "no model is called 'gpt'"),
        ([*FLEET, *MIX, "--model", "llama-3.1-70b"], "does not fit h100"),
        ([*FLEET, *MIX, "--plot", "chart.pdf"], "must end in .png or .svg"),
        ([*FLEET, *MIX, "--what-if", "fast"], "'fast' is no condition"),
        ([*FLEET, "--mix", "rate=1"], "0 kinds of requests"),
        ([*FLEET, *MIX, "--device", "mine"], "'mine' is not NAME"),
        ([*FLEET, "--trace", "/nowhere.csv"], "/nowhere.csv: No such file"),
    ],
)
def test_bad_input_is_wrong_usage_and_told(args: list[str], words: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def test_a_trace_that_breaks_off_is_told_with_its_line(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"at_s": 1, "input_tokens": 5, "output_tokens": 5}\n{"at_s": 2, "input_tokens": 5\n')
    result = run(*FLEET, "--trace", str(trace))
    assert result.exit_code == 2
    assert "t.jsonl, line 2: Invalid JSON" in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("last_s", "rate", "option"),
    [("1e12", "1", "--trace"), ("20", "1e-9", "--rate"), ("20", "1e-320", "--rate")],
)
def test_times_that_cannot_be_seconds_are_refused_and_not_waited_for(
    tmp_path: Path, last_s: str, rate: str, option: str
) -> None:
    trace = tmp_path / "t.jsonl"
    lines = (f'{{"at_s": {at_s}, "input_tokens": 5, "output_tokens": 5}}\n' for at_s in ("0", last_s))
    trace.write_text("".join(lines))
    result = run(*FLEET, "--trace", str(trace), "--rate", rate, "--policy", "cost")
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"Invalid value for {option}: a request comes" in said
    assert "taken for seconds?" in said


def test_a_chart_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    result = run(*FLEET, *MIX, "--policy", "cost", "--plot", str(tmp_path / "no" / "chart.svg"))
    assert result.exit_code == 1
    assert "the chart was not written" in result.stderr


def test_numbers_of_gateways_are_compared() -> None:
    result = run(*FLEET, *MIX, "--policy", "cost", "--gateways", "1,4")
    assert result.exit_code == 0, result.output
    header, one, four = result.stdout.splitlines()
    assert header.split()[-3:] == ["CROSSED", "IDLE", "FAIR"]
    assert one.split()[:2] == ["cost", "40"]
    assert four.split()[:4] == ["cost,", "4", "gateways", "40"]
    told = json.loads(run(*FLEET, *MIX, "--policy", "cost", "--gateways", "4", "--json").stdout)
    assert told["policies"]["cost, 4 gateways"]["gateways"] == 4


def test_a_round_trip_is_of_devices_of_which_the_fleet_says_none() -> None:
    told = json.loads(
        run("--fleet", "1*h100,1*l4@40ms", *MIX, "--rtt", "10", "--policy", "cost", "--json").stdout
    )
    assert told["fleet"] == "1*h100@10ms,1*l4@40ms"


@pytest.mark.parametrize("wrong", [("--gateways", "0"), ("--gateways", "a"), ("--rtt", "11000")])
def test_a_wrong_number_is_told(wrong: tuple[str, str]) -> None:
    result = run(*FLEET, *MIX, *wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.output
