"""Names of what a config chooses: those of bertjax, entry points of installed packages, and `package.module:Name`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from bertjax.errors import USER_CODE_ERRORS, UserError, comma_list, one_line, require_one_of

T = TypeVar("T")
PACKAGES = "extension_packages"
"""Key of stored configs: installed packages whose entry points they name."""
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Registry(Mapping[str, T], Generic[T]):
    """The objects that a config key names, imported when they are used.

    As a mapping it holds the names of bertjax and of entry points; `load` also takes `package.module:Name`.

    Args:
        key: The config key, for messages.
        group: Group of entry points.
        builtin: Names of bertjax with the path of their object.
        base: `package.module:Class` that an object must be an instance of, or with `classes` a subclass of.
        classes: Whether the objects are classes.
        required: Attributes that an extension must set.
        methods: Methods of the base class that an extension must define, or a function of it that returns them.
        prefix: Beginning of the group in which an extension declares its settings; "" where it has none.
        hints: Names with others, separated by blanks, by which people know the same thing; for messages.
    """

    def __init__(
        self,
        key: str,
        group: str,
        builtin: Mapping[str, str],
        base: str,
        classes: bool = True,
        required: Sequence[str] = (),
        methods: Sequence[str] | Callable[[Any], Sequence[str]] = (),
        prefix: str = "",
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self.key, self.group, self.builtin, self.base = key, group, dict(builtin), base
        self.classes, self.required, self.methods, self.prefix = classes, tuple(required), methods, prefix
        self.hints = {other: name for name, others in (hints or {}).items() for other in others.split()}
        self._loaded: dict[str, T] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.builtin, *sorted(self._paths())]))

    def __len__(self) -> int:
        return len({*self.builtin, *self._paths()})

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self._paths()

    def __getitem__(self, name: str) -> T:
        return self.load(name)

    def builtins(self) -> tuple[T, ...]:
        """Returns the objects of bertjax."""
        return tuple(map(self.load, self.builtin))

    def usable(self) -> Iterator[T]:
        """Yields the objects of bertjax, then those of installed packages that can be imported."""
        for name in self:
            try:
                yield self.load(name)
            except UserError:
                if name in self.builtin:
                    raise

    def is_extension(self, name: str) -> bool:
        """Returns whether a name is not one of bertjax's."""
        return name not in self.builtin

    def load(self, name: str, where: str = "") -> T:
        """Imports the object of a name.

        Args:
            name: A name of bertjax or of an entry point, or `package.module:Name`.
            where: What to name in errors instead of the key and its value.

        Raises:
            UserError: There is no such object, it cannot be imported, or it lacks something.
        """
        where = where or f"{self.key}={name}"
        self.require_no_clash(name, where)
        entry_points = self._paths().get(name, [])
        path = self.builtin.get(name) or (entry_points[0][0] if entry_points else name)
        if not _PATH.fullmatch(path):
            require_one_of(self.key, name, tuple(self), self.hints)
        if path not in self._loaded:
            loaded = import_object(path, where)
            if name not in self.builtin:
                self._check(loaded, where)
            self._loaded[path] = loaded
        return self._loaded[path]

    def package(self, name: str) -> str | None:
        """Returns the installed package whose entry point has this name; None for other names."""
        return None if name in self.builtin else self._paths().get(name, [("", None)])[0][1]

    def _paths(self) -> Mapping[str, list[tuple[str, str]]]:
        return _entry_points(tuple(sys.path)).get(self.group, {})

    def require_no_clash(self, name: str, where: str) -> None:
        """Raises `UserError`, which begins with `where`, if an entry point has a name of bertjax, or two have one."""
        entry_points = self._paths().get(name, [])
        if name in self.builtin and entry_points:
            raise UserError(
                f"{where}: the package {entry_points[0][1]} has an entry point of this name in the group {self.group}, "
                "but the name is one of bertjax; rename the entry point, or remove the package"
            )
        if len(entry_points) > 1:
            packages = " and ".join(sorted(package for _, package in entry_points))
            path = entry_points[0][0]
            raise UserError(f"{where}: the packages {packages} both have this name; write its path, such as {path}")

    def _check(self, loaded: Any, where: str) -> None:
        base, required = import_object(self.base, where), self.required
        fits = (
            isinstance(loaded, type) and issubclass(loaded, base)
            if self.classes
            else isinstance(loaded, base) and not isinstance(loaded, type)
        )
        if not fits:
            what = "a subclass" if self.classes else "an instance"
            raise UserError(f"{where} must be {what} of bertjax.extensions.{base.__name__}, not {one_line(loaded)}")
        cls = loaded if isinstance(loaded, type) else type(loaded)
        missing = [each for each in required if not getattr(loaded, each, None)]
        if missing:
            raise UserError(f"{where}: {cls.__name__} lacks the attribute {' and '.join(missing)}")
        if self.prefix and not re.fullmatch(rf"{self.prefix}\.[a-z]\w*", str(getattr(loaded, "group", ""))):
            raise UserError(
                f"{where}: {cls.__name__} must declare its settings in a group {self.prefix}.NAME: "
                f'class {cls.__name__}({base.__name__}, group="{self.prefix}.NAME")'
            )
        undecorated = [each for each, value in vars(cls).items() if isinstance(value, dataclasses.Field)]
        if undecorated:
            raise UserError(
                f"{where}: {cls.__name__} declares {undecorated[0]} but is not a dataclass; decorate it with "
                "@dataclasses.dataclass(frozen=True)"
            )
        if methods := self.methods(loaded) if callable(self.methods) else self.methods:
            require_methods(cls, base, methods, f"{where}: {cls.__name__}")


@functools.lru_cache(maxsize=4)
def _entry_points(path: tuple[str, ...]) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """Returns {group: {name: [(path, package)]}} of the packages on a search path."""
    from importlib import metadata

    groups: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for distribution in metadata.distributions():
        for each in distribution.entry_points:
            if each.group.startswith("bertjax."):
                named = groups.setdefault(each.group, {}).setdefault(each.name, [])
                named += [] if any(each.value == value for value, _ in named) else [(each.value, distribution.name)]
    return groups


def require_packages(packages: Any, where: str = "") -> None:
    """Raises `UserError`, which begins with `where`, if a package of a stored list (`PACKAGES`) is not installed."""
    from importlib import metadata

    installed = {each.name for each in metadata.distributions()} if packages else set()
    missing = [str(name) for name in packages if name not in installed] if isinstance(packages, list) else []
    if missing:
        which = f"the package {comma_list(missing)}, whose extensions were used, is not installed; install it"
        raise UserError(f"{where}: {which}" if where else which)


def import_object(path: str, where: str) -> Any:
    """Imports `package.module:Name`; after the colon, dots lead to attributes, or to items of a mapping.

    Errors begin with `where`.

    Raises:
        UserError: It cannot be imported; names the package where that is missing.
    """
    module, _, names = path.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in names.split("."):
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    except USER_CODE_ERRORS as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"{where}: the package {error.name} is not installed; install it, or set another") from None
        raise UserError(f"{where}: {path} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    return value


def require_methods(cls: type, base: type, methods: Iterable[str], what: str) -> None:
    """Checks the methods of a class.

    Args:
        cls: The class.
        base: Base class that defines the methods.
        methods: Methods that the class must define.
        what: Beginning of the message.

    Raises:
        UserError: A method is missing, or takes other parameters.
    """
    missing = [name for name in methods if getattr(cls, name) is getattr(base, name)]
    if missing:
        raise UserError(f"{what} lacks the method {' and '.join(missing)} of {base.__name__}")
    for name, method in vars(base).items():
        if inspect.isfunction(method) and not name.startswith("__") and not accepts(getattr(cls, name), method):
            parameters = ", ".join(inspect.signature(method).parameters)
            raise UserError(f"{what}.{name} must take the parameters ({parameters})")


def accepts(function: Callable[..., Any], example: Callable[..., Any]) -> bool:
    """Returns whether a function can be called with the parameters of another, in their order."""
    parameters = inspect.signature(example).parameters.values()
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    try:
        inspect.signature(function).bind(*positional)
    except TypeError:
        return False
    return True


class Choices(Sequence[str]):
    """The names in a registry, as the choices of a setting; they are listed when somebody reads them.

    Args:
        registry: The registry.
        others: Names that have no object there.
    """

    def __init__(self, registry: Registry[Any], *others: str) -> None:
        self.registry, self.others = registry, others

    def __len__(self) -> int:
        return len(self.registry) + len(self.others)

    def __getitem__(self, index: Any) -> Any:
        return [*self.registry, *self.others][index]

    def require(self, key: str, value: str) -> None:
        """Raises `UserError` if a value is neither a name nor the path of an extension that can be used."""
        if value in self.others:
            return
        if value in self.registry.builtin:  # which need not be imported for that
            self.registry.require_no_clash(value, f"{key}={value}")
            return
        if not _PATH.fullmatch(value):
            require_one_of(key, value, self, self.registry.hints)
        self.registry.load(value, f"{key}={value}")
