package events

import "strings"

// Follows names the last result of a repository in the cell that it was moved from. Results of the new cell
// come after it.
type Follows struct {
	Cell   string `json:"cell"`
	Stream string `json:"stream"` // of the results of that cell
	// the last entry of that stream when the repository left, or an earlier one if it was the last of the repository
	Entry string `json:"entry"`
}

// String returns a text that [ParseFollows] parses.
func (f Follows) String() string { return f.Cell + " " + f.Entry + " " + f.Stream }

// ParseFollows parses the text returned by [Follows.String]. It returns false for any other.
func ParseFollows(text string) (Follows, bool) {
	parts := strings.Fields(text)
	if len(parts) != 3 {
		return Follows{}, false
	}
	return Follows{Cell: parts[0], Entry: parts[1], Stream: parts[2]}, true
}
