"""A chat in the terminal with Textual: Enter sends, Escape stops the reply, Ctrl-Q quits.

pip install edgespec textual
python examples/textual_app.py
"""

import os

from textual import work
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, Static

import edgespec


class ChatApp(App[None]):
    """One conversation: what was said above, the next message below."""

    BINDINGS = [("escape", "stop", "Stop the reply")]
    CSS = "Static.mine { color: $accent; margin-top: 1; }"

    def __init__(self, engine: edgespec.Engine) -> None:
        super().__init__()
        self._chat = engine.chat()
        self._reply: edgespec.Stream | None = None

    def compose(self) -> ComposeResult:
        yield VerticalScroll(id="talk")
        yield Input(placeholder="A message")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        message = event.value.strip()
        event.input.clear()
        if message:
            self.answer(message)

    def action_stop(self) -> None:
        if self._reply is not None:
            self._reply.cancel()

    @work(exclusive=True)
    async def answer(self, message: str) -> None:
        """Show a message and its reply as it is written; a later message ends this worker."""
        talk, shown = self.query_one("#talk"), Static(markup=False)
        await talk.mount(Static(f"> {message}", classes="mine", markup=False), shown)
        options: edgespec.ReplyKeywords = {"max_tokens": 300, "on_overflow": "drop-turns"}
        async with self._chat.stream(message, **options) as self._reply:
            async for _ in self._reply:
                shown.update(self._reply.text)
                talk.scroll_end(animate=False)


def main() -> None:
    with edgespec.load(os.environ.get("EDGESPEC_MODEL")) as engine:
        ChatApp(engine).run()


if __name__ == "__main__":
    main()
