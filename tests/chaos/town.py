"""What stands in a run: which models there are, and which agents serve them. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.scripted_engine import Habit

DEMO = "trunkline-demo"


@dataclass(frozen=True, slots=True)
class Post:
    """One agent and the one engine beside it."""

    name: str
    model: str
    repeats_head: bool = False
    """Its engine says an answer's beginning again when it goes on with it."""
    habits: tuple[Habit, ...] = ()
    """What its engine does otherwise than most."""

    def has(self, route: str) -> bool:
        """Whether its engine has ``route``; one that looks interrupt is taken for llama-cpp-python."""
        return Habit.LOOKS_INTERRUPT not in self.habits or route in ("chat", "completions")

    @property
    def is_demo(self) -> bool:
        """Its engine is the built-in one with the demo model."""
        return self.model == DEMO


@dataclass(frozen=True, slots=True)
class Town:
    """Everything that serves."""

    posts: tuple[Post, ...]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(post.model for post in self.posts))

    def of_model(self, model: str) -> tuple[Post, ...]:
        """The agents that serve ``model``."""
        return tuple(post for post in self.posts if post.model == model)

    @property
    def by_name(self) -> Mapping[str, Post]:
        return {post.name: post for post in self.posts}


def build_town(*, demo: bool, small: bool = False) -> Town:
    """Three agents for one model, two for another, and two more for the demo model if it is wanted. Some of
    their engines have habits of real ones.

    A small town has the first three alone.
    """
    posts = [
        Post("alpha-1", "alpha"),
        Post("alpha-2", "alpha", repeats_head=True, habits=(Habit.OMITS_END,)),
        Post("alpha-3", "alpha"),
        Post("beta-1", "beta"),
        Post("beta-2", "beta", habits=(Habit.OMITS_END, Habit.LOOKS_INTERRUPT)),
    ]
    if small:
        return Town(tuple(posts[:3]))
    if demo:
        posts += [Post("demo-1", DEMO), Post("demo-2", DEMO)]
    return Town(tuple(posts))
