"""Endpoints about the tokenizer and the version, with the fields of vLLM, SGLang and evaluation tools."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from transom import __version__
from transom.server import protocol
from transom.server.admin import Read
from transom.server.errors import bad_request
from transom.server.input_processor import InputProcessor
from transom.server.responses import json_response


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: list[protocol.Message] | None = None
    tools: list[protocol.ToolDefinition] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


read_tokenize = protocol.Reader(TokenizeRequest)
read_detokenize = protocol.Reader(DetokenizeRequest)


@dataclass(frozen=True, slots=True)
class Doors:
    """The endpoints. None of them needs the engine."""

    processor: InputProcessor
    read: Read

    def routes(self) -> list[Route]:
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/tokenizer_info", self.tokenizer_info),
            Route("/version", self.version),
        ]

    async def tokenize(self, request: Request) -> Response:
        """The token ids that a completion or a chat with this prompt would begin with."""
        body = await self.read(request, read_tokenize)
        self.processor.check_model(body.model)
        ids = await self._ids(body)
        strings = [self._text_of(token) for token in ids] if body.return_token_strs else None
        return json_response(
            {
                "count": len(ids),
                "max_model_len": self.processor.context,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    async def _ids(self, body: TokenizeRequest) -> list[int]:
        if (body.prompt is None) == (body.messages is None):
            raise bad_request(
                "one of prompt and messages is required", "prompt", "missing_required_parameter"
            )
        if body.prompt is not None:
            bos = body.add_special_tokens is not False
            # Unlike a completion, an empty text has an answer.
            tokens = await self.processor.encode(body.prompt, bos=bos)
        else:
            chat = protocol.ChatRequest(
                messages=body.messages or [],
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
            )
            tokens = await self.processor.chat_tokens(chat)
        ids: list[int] = tokens.tolist()
        return ids

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids. Without `skip_special_tokens`, control tokens have their literals."""
        body = await self.read(request, read_detokenize)
        self.processor.check_model(body.model)
        if body.tokens:
            self.processor.token_ids(body.tokens, "tokens")
        text = await asyncio.to_thread(self._decoded, body.tokens, bool(body.skip_special_tokens))
        # vLLM's name and SGLang's.
        return json_response({"prompt": text, "text": text})

    def _decoded(self, ids: list[int], skip_special: bool) -> str:
        detokenizer = self.processor.text.detokenizer(skip_special=skip_special)
        return "".join([*map(detokenizer.feed, ids), detokenizer.finish()])

    async def tokenizer_info(self, request: Request) -> Response:
        """What evaluation tools ask a remote tokenizer for, as in a `tokenizer_config.json`."""
        text = self.processor.text
        bos, eos = text.begin_and_end
        return json_response(
            {
                "tokenizer_class": "transom",
                "vocab_size": text.vocabulary,
                "model_max_length": self.processor.context,
                "bos_token": None if bos is None else self._text_of(bos),
                "bos_token_id": bos,
                "eos_token": None if eos is None else self._text_of(eos),
                "eos_token_id": eos,
                "stop_token_ids": sorted(text.stop_ids),
                "add_bos_token": bool(len(text.encode("", bos=True))),
                "pad_token": None,
            }
        )

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    def _text_of(self, token: int) -> str:
        """A token alone, control tokens by their literals."""
        return self._decoded([token], skip_special=False)
