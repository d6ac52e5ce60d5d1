"""The default tools, and which of them a run gets.

Invariant: a name belongs to one tool. What is not in a row of the tables is not offered: a new preset or tool starts
with nothing.
"""

from collections.abc import Iterable

from hub.agent.tools import ask_question, editor, read_files, run_commands, search_codebase, submit_and_exit
from hub.agent.tools.ask_question import AskQuestion
from hub.agent.tools.base import Tool
from hub.agent.tools.editor import Editor
from hub.agent.tools.read_files import ReadFiles
from hub.agent.tools.run_commands import RunCommands
from hub.agent.tools.search_codebase import SearchCodebase
from hub.agent.tools.submit_and_exit import SubmitAndExit
from hub.domain.values import AgentMode, Preset
from hub.errors import InternalError

READ, SEARCH, RUN = read_files.NAME, search_codebase.NAME, run_commands.NAME
EDIT, ASK, SUBMIT = editor.NAME, ask_question.NAME, submit_and_exit.NAME

PRESETS: dict[Preset, tuple[str, ...]] = {
    "default": (READ, SEARCH, RUN, EDIT, ASK),
    "search": (READ, SEARCH),
    "minimal": (RUN,),
    "yolo": (READ, RUN, EDIT, SUBMIT),
}
# In plan mode nothing writes; whether a command only reads is for policy to say, call by call.
AGENT_MODES: dict[AgentMode, frozenset[str]] = {
    "act": frozenset({READ, SEARCH, RUN, EDIT, ASK, SUBMIT}),
    "plan": frozenset({READ, SEARCH, RUN, ASK, SUBMIT}),
}


def registered(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by name. Raises InternalError when two have the same."""
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if tool.spec.name in by_name:
            raise InternalError(f"two tools are named {tool.spec.name}", code="duplicate_tool")
        by_name[tool.spec.name] = tool
    return by_name


def default_tools() -> dict[str, Tool]:
    """Return the tools that the hub brings, by name, each a new one."""
    return registered([ReadFiles(), SearchCodebase(), RunCommands(), Editor(), AskQuestion(), SubmitAndExit()])


def tool_names(agent_mode: AgentMode, preset: Preset, *, unattended: bool = False) -> tuple[str, ...]:
    """Return the names of the tools for a run, in a fixed order. In an unattended run nobody can answer, so
    submit_and_exit stands in for ask_question."""
    names = (SUBMIT if unattended and name == ASK else name for name in PRESETS[preset])
    return tuple(name for name in names if name in AGENT_MODES[agent_mode])


def tools_for(preset: Preset, agent_mode: AgentMode, *, unattended: bool = False) -> dict[str, Tool]:
    """Return the tools of a run by name, in the order of `tool_names`."""
    tools = default_tools()
    return {name: tools[name] for name in tool_names(agent_mode, preset, unattended=unattended)}
