"""A conversation: what was said, and the commands that begin with a slash. No terminal here."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom.cli.chat_app.partner import Message, Partner

HELP = """\
/reset         begin a new conversation
/system TEXT   what the model is told first; begins a new conversation
/explain       what the next answer would find in memory
/save FILE     write the conversation: JSON if FILE ends so, else Markdown
/help          this
/quit          leave; Ctrl-D does too
A line that ends in a backslash goes on in the next. Ctrl-C ends an answer, not the program."""


@dataclass(frozen=True, slots=True)
class Say:
    """The user's words are in the conversation; an answer is due."""


@dataclass(frozen=True, slots=True)
class Show:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quit:
    pass


Outcome = Say | Show | Quit


class Session:
    """Owns the messages. Mutable."""

    def __init__(self, partner: Partner, system: str = "") -> None:
        self._partner = partner
        self._system = system
        self.messages: list[Message] = []
        self._reset()

    def take(self, line: str) -> Outcome:
        """One input of the user's."""
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
            return Show((f"there is no {word}; /help lists what there is",))
        return Show(tuple(command(self, rest.strip())))

    def answered(self, text: str) -> None:
        """The model's words, whole or interrupted."""
        self.messages.append({"role": "assistant", "content": text})

    def unanswered(self) -> None:
        """No word came: the user's last ones are taken back, so that roles still alternate."""
        assert self.messages and self.messages[-1]["role"] == "user", self.messages
        self.messages.pop()

    def _reset(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    # ------------------------------------------------------------ commands

    def help(self, _: str) -> list[str]:
        return HELP.splitlines()

    def reset(self, _: str) -> list[str]:
        self._reset()
        return ["a new conversation"]

    def system(self, text: str) -> list[str]:
        self._system = text
        self._reset()
        return ["a new conversation" + (", told that first" if text else "")]

    def explain(self, _: str) -> list[str]:
        if not self.messages:
            return ["nothing was said yet"]
        return self._partner.explain(self.messages)

    def save(self, name: str) -> list[str]:
        if not name:
            return ["/save FILE"]
        path = Path(name).expanduser()
        try:
            path.write_text(self._written(path.suffix == ".json"), encoding="utf-8")
        except OSError as error:
            return [f"{path}: {(error.strerror or str(error)).lower()}"]
        return [f"{len(self.messages)} messages written to {path}"]

    def _written(self, as_json: bool) -> str:
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
