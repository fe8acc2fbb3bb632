// Package operate is what people see of a deployment and do to it: documents and verbs. The command line, the HTTP
// API and the dashboard parse their parameters and render it.
//
//	letters := &operate.Letters{Cells: set}
//	page, err := letters.Page(ctx, operate.LetterQuery{Reason: "malformed"})
//	outcome, err := letters.Retry(ctx, "", "1795223511284-0")
//
// Hosts, which all cells share, have theirs in [lockstep/internal/hosts.Reader].
//
// A deployment of several cells is shown as one. Documents then name their cell, and lists name the cells that do
// not answer instead of failing. [Page] goes through the cells one after the other, for what is read in pages; [Gather]
// asks all and sorts what they have.
package operate
