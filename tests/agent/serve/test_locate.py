"""Finding the class that ``module:Class`` names."""

from pathlib import Path

import pytest

from agent.serve.locate import CannotImport, check_spec, find_module, locate
from tests.agent.serve.played_models import Echo

_PLAYED = "tests.agent.serve.played_models"


def test_the_class_is_found() -> None:
    assert locate(f"{_PLAYED}:Echo") is Echo


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_such_module:Model", "there is no module 'no_such_module'"),
        ("tests.agent.serve.no_such_module:Model", "there is no module 'tests.agent.serve.no_such_module'"),
        (f"{_PLAYED}:Missing", "has no Missing"),
        (f"{_PLAYED}:NOT_A_CLASS", "is not a subclass of agent.serve.Model"),
        (f"{_PLAYED}:NotAModel", "is not a subclass of agent.serve.Model"),
        (f"{_PLAYED}:Undecided", "has no predict"),
    ],
)
def test_what_is_not_there_is_said(spec: str, words: str) -> None:
    with pytest.raises(CannotImport, match=words):
        locate(spec)


def test_what_a_module_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_model_module.py").write_text("import a_module_that_nobody_has\n")
    (tmp_path / "broken_model_module.py").write_text("class Model(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CannotImport, match="needs a module that is not installed: a_module_that_nobody_has"):
        locate("needy_model_module:Model")
    with pytest.raises(CannotImport, match="is not valid Python"):
        locate("broken_model_module:Model")


def test_the_working_directory_is_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_module_here.py").write_text(
        "from agent.serve import Model\nclass Here(Model):\n    def predict(self, batch): return batch\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    find_module("model_module_here:Here", str(tmp_path))
    assert locate("model_module_here:Here").__name__ == "Here"
    with pytest.raises(ValueError, match="there is no module 'not_here'"):
        find_module("not_here:Here", str(tmp_path))


@pytest.mark.parametrize("spec", ["", "module", "module:", ":Class", "a/b:C", "m:C.D", "m:C:D", "1m:C"])
def test_other_forms_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="module:Class"):
        check_spec(spec)


@pytest.mark.parametrize("spec", ["module:Class", "a.b_c:D1"])
def test_the_form_is_module_and_class(spec: str) -> None:
    assert check_spec(spec) == spec
