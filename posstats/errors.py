"""The exceptions users meet. Each message says what was wrong and what is allowed."""


class PosstatsError(Exception):
    """Base of every error that posstats raises on purpose; the command line turns it into exit code 2."""


class InputError(PosstatsError, ValueError):
    """An argument, option or input text that cannot be used."""


class ModelError(PosstatsError):
    """A model that cannot be loaded or cannot be recorded exactly."""


class DumpError(PosstatsError):
    """A file that is not a whole posstats dump, or a dump that cannot be written."""


class DesignError(PosstatsError, ValueError):
    """Data that do not support the estimate: too few documents, no analysed query, mismatched conditions."""


class ClusterError(PosstatsError):
    """A cluster that lost its scheduler, or whoever took up some job; a process that ended before its work was done."""


class NumericalError(PosstatsError, ArithmeticError):
    """Numbers that are not finite, or parts that do not sum to their whole."""


class FewDocumentsWarning(UserWarning):
    """Intervals rest on fewer documents than they should."""
