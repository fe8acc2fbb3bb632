package handlers

// CauseOf is causeOf.
var CauseOf = causeOf
