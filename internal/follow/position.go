package follow

import "math"

// position tracks up to which cursor everything is published.
//
// Frames are numbered in the order of the stream. A request of a frame is open, by key, until it is published.
type position struct {
	number uint64          // of the last frame
	marks  []mark          // frames that the cursor has not passed, oldest first
	open   map[string]span // requests that are not published yet, by key
	cursor string          // everything up to here is published; "" if unknown
}

// mark is the cursor after a frame.
type mark struct {
	number uint64
	cursor string
}

// span has the numbers of the first and the last frame with an open request for the same key.
type span struct{ first, last uint64 }

const maxMarks = 1000

// frame adds the next frame.
func (p *position) frame(cursor string) {
	p.number++
	p.marks = append(p.marks, mark{p.number, cursor})
	if len(p.marks) > maxMarks { // some request has been open for long: the position can be less precise
		kept := p.marks[:0]
		for i, m := range p.marks {
			if i%2 == 0 || i == len(p.marks)-1 {
				kept = append(kept, m)
			}
		}
		p.marks = kept
	}
}

// ask records that the last frame requests key.
func (p *position) ask(key string) {
	s, ok := p.open[key]
	if !ok {
		s.first = p.number
	}
	s.last = p.number
	p.open[key] = s
}

// settled records that the requests for key up to a number are published.
func (p *position) settled(key string, number uint64) {
	switch s, ok := p.open[key]; {
	case !ok || number < s.first:
	case number >= s.last:
		delete(p.open, key)
	default:
		s.first = number + 1
		p.open[key] = s
	}
}

// advance moves the cursor past all that is published.
func (p *position) advance() {
	first := uint64(math.MaxUint64)
	for _, s := range p.open {
		first = min(first, s.first)
	}
	for len(p.marks) > 0 && p.marks[0].number < first {
		p.cursor, p.marks = p.marks[0].cursor, p.marks[1:]
	}
}
