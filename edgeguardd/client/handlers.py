"""Which function carries out which command.

Must not: call them (blocking and aio do). Upstream: model. Downstream: guard.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from edgeguardd.core.model import Action, Command

Handler = Callable[[Command], object] | Callable[[Command], Awaitable[object]]
H = TypeVar("H", bound=Handler)

# What these restrict stays restricted until restore.
LASTING = (Action.REDUCE_BATCH, Action.REJECT_REQUESTS, Action.UNLOAD_MODEL)


class Handlers:
    """The application's functions by action."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._by_action: dict[Action, Handler] = {}
        for word, handler in handlers.items():
            self.add(word, handler)

    def add(self, word: str, handler: Handler) -> None:
        """Let a function carry out an action. Raises ValueError for an unknown or a taken one."""
        action = _action(word)
        if action in self._by_action:
            raise ValueError(f"cannot handle {word!r} twice: it has a handler; remove one of the two")
        self._by_action[action] = handler

    def take(self, word: str) -> Handler | None:
        """The function of an action, which it then has no more. Raises ValueError for an unknown one."""
        return self._by_action.pop(_action(word), None)

    def has(self, word: str) -> bool:
        """Whether an action has a function. Raises ValueError for an unknown one."""
        return _action(word) in self._by_action

    def get(self, action: Action) -> Handler | None:
        """The function of an action."""
        return self._by_action.get(action)

    def supported(self) -> tuple[Action, ...]:
        """The actions that have a function, in the order of the protocol."""
        return tuple(action for action in Action if action in self._by_action)

    def check(self) -> None:
        """Raises ValueError when something can be restricted that could never be restored."""
        for action in LASTING:
            if action in self._by_action and Action.RESTORE not in self._by_action:
                raise ValueError(f'cannot start: "{action}" has a handler but "restore" has none; add one, or it stays')


def _action(word: str) -> Action:
    try:
        return Action(word)
    except ValueError:
        known = ", ".join(Action)
        raise ValueError(f"cannot handle {word!r}: no such command; choose one of {known}") from None
