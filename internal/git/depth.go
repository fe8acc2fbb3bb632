package git

import "strconv"

// Depth is the number of commits of a ref's history; 0 means 1.
type Depth int

// FullDepth is the whole history of a ref.
const FullDepth Depth = -1

// ParseDepth parses the result of [Depth.String]. It returns 0 for any other text.
func ParseDepth(text string) Depth {
	if text == "full" {
		return FullDepth
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0
	}
	return Depth(n)
}

// String returns the number, "full", or "" for 0.
func (d Depth) String() string {
	switch d {
	case FullDepth:
		return "full"
	case 0:
		return ""
	}
	return strconv.Itoa(int(d))
}
