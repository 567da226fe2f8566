"""Finds the class that ``module:Class`` names, from the working directory."""

import importlib
import os
import re
import sys
from importlib.machinery import PathFinder

from agent.serve.model import Model

_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class CannotImport(Exception):
    """The class is not there, or is no model. Trying again cannot help."""


def check_spec(spec: str) -> str:
    """``spec``, if it has the form ``module:Class``. Raises ValueError."""
    if not _SPEC.fullmatch(spec):
        raise ValueError("a model of your own is written module:Class, for instance my_module:Classifier")
    return spec


def find_module(spec: str, directory: str) -> None:
    """Raises ValueError when the module that ``spec`` names is in neither ``directory`` nor Python's path.
    Nothing is imported."""
    package = spec.partition(":")[0].partition(".")[0]
    if package in sys.builtin_module_names:
        return
    if PathFinder.find_spec(package, [directory, *sys.path]) is None:
        raise ValueError(f"there is no module {package!r} in {directory} or in Python's path")


def locate(spec: str) -> type[Model]:
    """The class. Raises :class:`CannotImport`, and what the module raises when it is imported."""
    module_name, _, class_name = spec.partition(":")
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise CannotImport(
                f"there is no module {error.name!r} in {directory} or in Python's path"
            ) from None
        raise CannotImport(f"{module_name} needs a module that is not installed: {error.name}") from error
    except SyntaxError as error:
        raise CannotImport(f"{module_name} is not valid Python: {error}") from error
    found = getattr(module, class_name, None)
    if found is None:
        raise CannotImport(f"the module {module_name} has no {class_name}")
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise CannotImport(f"{spec} is not a subclass of agent.serve.Model")
    if found.predict is Model.predict:
        raise CannotImport(f"{spec} has no predict")
    return found
