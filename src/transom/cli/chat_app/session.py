"""A conversation and its slash commands, independent of the terminal."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom.cli.chat_app.backend import Backend, Message

HELP = """\
/reset         start a new conversation
/system TEXT   set the system message, and start a new conversation
/explain       show how much of the next prompt is cached, and why not more
/save FILE     write the conversation: as JSON if FILE ends in .json, otherwise as Markdown
/help          show this list
/quit          leave; Ctrl-D does the same
A line that ends in a backslash continues on the next line. Ctrl-C ends an answer, not the program."""


@dataclass(frozen=True, slots=True)
class Say:
    """A user message was added: it needs an answer."""


@dataclass(frozen=True, slots=True)
class Show:
    """Lines to print; no answer is needed."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quit:
    pass


Outcome = Say | Show | Quit


class Session:
    """The messages of one conversation. Mutable."""

    def __init__(self, backend: Backend, system: str = "") -> None:
        self._backend = backend
        self._system = system
        self.messages: list[Message] = []
        self._reset()

    def take(self, line: str) -> Outcome:
        """Processes one input of the user."""
        if not line.strip():
            return Show(())
        if not line.startswith("/"):
            self.messages.append({"role": "user", "content": line})
            return Say()
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return Quit()
        command = _COMMANDS.get(word)
        if command is None:
            return Show((f"there is no command {word}; /help lists the commands",))
        return Show(tuple(command(self, rest.strip())))

    def add_answer(self, text: str) -> None:
        """Adds the model's answer, complete or interrupted."""
        self.messages.append({"role": "assistant", "content": text})

    def drop_unanswered(self) -> None:
        """Removes the last user message, which got no answer: templates require that roles alternate."""
        assert self.messages and self.messages[-1]["role"] == "user", self.messages
        self.messages.pop()

    def _reset(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    # ------------------------------------------------------------ commands

    def help(self, _: str) -> list[str]:
        return HELP.splitlines()

    def reset(self, _: str) -> list[str]:
        self._reset()
        return ["new conversation"]

    def system(self, text: str) -> list[str]:
        self._system = text
        self._reset()
        return ["new conversation" + (" with this system message" if text else "")]

    def explain(self, _: str) -> list[str]:
        if not self.messages:
            return ["the conversation is empty"]
        return self._backend.explain(self.messages)

    def save(self, name: str) -> list[str]:
        if not name:
            return ["/save FILE"]
        path = Path(name).expanduser()
        try:
            path.write_text(self._exported(path.suffix == ".json"), encoding="utf-8")
        except OSError as error:
            return [f"{path}: {(error.strerror or str(error)).lower()}"]
        return [f"{len(self.messages)} messages written to {path}"]

    def _exported(self, as_json: bool) -> str:
        if as_json:
            return json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2) + "\n"
        return "".join(f"**{message['role']}**\n\n{message['content']}\n\n" for message in self.messages)


_COMMANDS: dict[str, Callable[[Session, str], list[str]]] = {
    "/help": Session.help,
    "/reset": Session.reset,
    "/system": Session.system,
    "/explain": Session.explain,
    "/save": Session.save,
}
