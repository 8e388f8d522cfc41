"""Chat templates: equal to transformers on templates of the usual kinds, and clear about what they refuse."""

import copy
import json
from datetime import datetime

import pytest

from wager.errors import ModelError, RequestError
from wager.text.chat import ChatTemplate

CHATML_WITH_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_user=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last_user = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}{%- continue %}{%- endif %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is defined and loop.index0 > ns.last_user %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

HEADERS_WITH_DATE = """{{- bos_token }}
{%- set date_string = strftime_now("%d %b %Y") %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
<|start_header_id|>system<|end_header_id|>

Today: {{ date_string }}
{{ system }}<|eot_id|>
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/...') }}
    {%- endif %}
    {%- generation %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

TEMPLATES = {"chatml": CHATML_WITH_TOOLS, "headers": HEADERS_WITH_DATE}
SPECIAL_TOKENS = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
USER = {"role": "user", "content": "  What is <b>2 & 2</b>? 小 "}
SYSTEM = {"role": "system", "content": "Be brief.\n"}
ASSISTANT = {"role": "assistant", "content": "Four. "}
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "\nuse the tool\n",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "text": "<é>"}}}],
}
TOOL = {"type": "function", "function": {"name": "add", "description": "1 < 2", "parameters": {"a": "int"}}}

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, USER],
    "call": [USER, CALL],
}


def make(source):
    return ChatTemplate(source, SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def reference(byte_level):
    """transformers' own rendering."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level.backend, **SPECIAL_TOKENS)

    def render(source, messages, **options):
        return tokenizer.apply_chat_template(
            copy.deepcopy(messages), chat_template=source, tokenize=False, **options
        )

    return render


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}], ids=["", "no-thinking"])
@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "no-prompt"])
def test_equal_to_transformers(reference, template, conversation, tools, kwargs, prompt):
    source, messages = TEMPLATES[template], CONVERSATIONS[conversation]
    expected = reference(source, messages, tools=tools, add_generation_prompt=prompt, **kwargs)
    got = make(source).render(messages, tools=tools, add_generation_prompt=prompt, template_kwargs=kwargs)
    assert got == expected


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("content", ["Four", "Four. "])
def test_continuing_the_last_message_equals_transformers(reference, template, content):
    messages = [USER, {"role": "assistant", "content": content}]
    expected = reference(TEMPLATES[template], messages, continue_final_message=True)
    got = make(TEMPLATES[template]).render(messages, continue_final=True, add_generation_prompt=False)
    assert got == expected and got.rstrip().endswith(content.rstrip())


def test_messages_are_left_as_they_were():
    messages = copy.deepcopy(CONVERSATIONS["call"])
    make(CHATML_WITH_TOOLS).render(messages, continue_final=True, add_generation_prompt=False)
    assert messages == CONVERSATIONS["call"]


def test_arguments_sent_as_json_text_are_written_as_json():
    call = copy.deepcopy(CALL)
    call["content"] = None
    call["tool_calls"][0]["function"]["arguments"] = json.dumps(
        CALL["tool_calls"][0]["function"]["arguments"]
    )
    template = make(CHATML_WITH_TOOLS)
    assert template.render([USER, call]) == template.render([USER, CALL])


@pytest.mark.parametrize("arguments", ["{", "[1]"])
def test_arguments_that_are_no_object_are_left_alone(arguments):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert json.dumps(arguments) in make(CHATML_WITH_TOOLS).render([USER, call])


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, "three"]
    assert make("{{ messages[0].content }}").render([{"role": "user", "content": parts}]) == "one\ntwo\nthree"


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_goes_by_any_of_its_names(name):
    template = make("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "x", name: "so"}]) == "so|so"


def test_the_date_is_todays():
    assert make("{{ strftime_now('%Y') }}").render([USER]) == str(datetime.now().year)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], r"messages\[0\]"),
        ([USER, {"content": "x"}], r"messages\[1\].role"),
        ([{"role": "", "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\]: expected content"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]: expected a text part"),
        ([{"role": "user", "content": object()}], r"messages\[0\].content: expected plain JSON"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"tool_calls\[0\]"),
    ],
)
def test_malformed_messages_are_named(messages, field):
    with pytest.raises(RequestError, match=field):
        make(CHATML_WITH_TOOLS).render(messages)


def test_what_the_template_refuses_is_a_request_error_in_its_words():
    with pytest.raises(RequestError, match=r"^messages: Conversation roles must alternate"):
        make(HEADERS_WITH_DATE).render([USER, USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at_all }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_that_fails_is_a_request_error(source):
    with pytest.raises(RequestError, match="cannot render"):
        make(source).render([USER])


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_template_kwargs_cannot_take_the_place_of_fields(name):
    with pytest.raises(RequestError, match=f"chat_template_kwargs.{name}"):
        make(CHATML_WITH_TOOLS).render([USER], template_kwargs={name: []})


def test_a_message_cannot_be_continued_and_a_new_one_begun():
    with pytest.raises(RequestError, match="continue_final_message"):
        make(CHATML_WITH_TOOLS).render([USER, ASSISTANT], continue_final=True)
    with pytest.raises(RequestError, match="does not show"):
        make("fixed").render([USER, ASSISTANT], continue_final=True, add_generation_prompt=False)


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'open", {"tool_use": "x"}])
def test_templates_that_cannot_be_used_are_model_errors(source):
    with pytest.raises(ModelError, match="chat template"):
        make(source)


def test_a_folder_may_have_no_template(folder):
    assert ChatTemplate.from_folder(folder) is None


def test_the_template_file_goes_before_the_config(folder):
    settings = {"bos_token": "<|start|>", "chat_template": "{{ bos_token }} config"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert ChatTemplate.from_folder(folder).render([USER]) == "<|start|> config"
    (folder / "chat_template.jinja").write_text("{{ bos_token }} file")
    assert ChatTemplate.from_folder(folder).render([USER]) == "<|start|> file"


def test_named_templates_are_chosen_by_tools(folder):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.from_folder(folder)
    assert template.render([USER]) == "plain" and template.render([USER], tools=[TOOL]) == "tools"


def test_a_strange_template_is_a_model_error(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": 5}))
    with pytest.raises(ModelError, match="chat_template is int"):
        ChatTemplate.from_folder(folder)
