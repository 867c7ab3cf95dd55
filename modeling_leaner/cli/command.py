"""How a command line is read: options once each, `--two-words` or `--two_words`, several values after one."""

from itertools import chain

import typer
from typer.core import TyperCommand, TyperOption

from ..training.reading import repeated_message, split_options


def dashed(name: str) -> str:
    """An option as it is declared: `--head_dim` is `--head-dim`."""
    return name.replace("_", "-")


class Command(TyperCommand):
    """A command that takes an option once, of which typer would silently take the last, unless it is a list's.

    A list whose metavar ends in `...` is given once, with all its values: `--data-files a b`.
    """

    def option_of(self, word: str) -> TyperOption | None:
        """The option that a word such as `--head_dim=8` names; None for one that the command does not have."""
        name = dashed(word.partition("=")[0])
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and name in parameter.opts:
                return parameter
        return None

    def parse_args(self, context: typer.Context, args: list[str]) -> list[str]:
        first, *groups = split_options(args)
        self.check_once(context, groups)
        arguments = chain(first, *(self.one_each(context, group) for group in groups))
        return super().parse_args(context, list(arguments))

    def check_once(self, context: typer.Context, groups: list[list[str]]) -> None:
        """Refuses an option that is given twice, and names both values."""
        given: dict[str, list[str]] = {}
        for group in groups:
            option = self.option_of(group[0])
            name = dashed(group[0].partition("=")[0])
            if option is not None:
                name = option.opts[0]
                if option.multiple and not takes_several(option):
                    continue
            values = values_of(option, group)
            if name in given:
                context.fail(repeated_message(name, given[name], values))
            given[name] = values

    def one_each(self, context: typer.Context, group: list[str]) -> list[str]:
        """An option with its values, as typer reads them: several values as the option again before each of them."""
        option = self.option_of(group[0])
        if option is None or not takes_several(option) or "=" in group[0]:
            return group
        name, *values = group
        if not values:
            context.fail(f"Option {option.opts[0]!r} requires an argument.")
        return list(chain.from_iterable((name, value) for value in values))


def takes_several(option: TyperOption) -> bool:
    """Whether all that follows an option are its values."""
    return option.metavar is not None and option.metavar.endswith("...")


def values_of(option: TyperOption | None, group: list[str]) -> list[str]:
    """The values in an option's group, of which the option is the first; of an unknown one all that follows."""
    name, equals, value = group[0].partition("=")
    if equals:
        return [value]
    if option is None or takes_several(option):
        return group[1:]
    if option.is_flag:
        return []
    return group[1:2]


class KeyCommand(Command):
    """A command whose options are keys of a recipe; the command declares those that have a meaning beyond recipes.

    All are left in `context.args`, in the spelling of recipes, declared ones too.
    """

    def parse_args(self, context: typer.Context, args: list[str]) -> list[str]:
        if not set(args).isdisjoint(context.help_option_names):
            return super().parse_args(context, context.help_option_names[:1])
        first, *groups = split_options(args)
        self.check_once(context, groups)
        declared = [group for group in groups if self.option_of(group[0]) is not None]
        super().parse_args(context, list(chain(first, *declared)))
        context.args = list(chain.from_iterable(map(self.as_keys, groups)))
        return context.args

    def as_keys(self, group: list[str]) -> list[str]:
        """The option as a key, and its values: `--max-steps=3` is `--max_steps=3`, `--data` `--data_files`."""
        name, equals, value = group[0].partition("=")
        option = self.option_of(name)
        key = name[2:].replace("-", "_")
        if option is not None:
            key = option.name
        return [f"--{key}{equals}{value}", *group[1:]]
