package router

// Spare is a slot for optional work in the background.
type Spare struct {
	slots  *Slots
	wanted chan struct{}
}

// Spare returns a free slot, or nil if there is none or the process is stopping. The caller must give it back with Release.
func (s *Slots) Spare() *Spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.busy >= s.size {
		return nil
	}
	s.busy++
	spare := &Spare{slots: s, wanted: make(chan struct{})}
	s.spares[spare] = true
	return spare
}

// Wanted returns a channel that is closed once a message waits for a slot, or the process is stopping.
func (t *Spare) Wanted() <-chan struct{} { return t.wanted }

// Release gives the slot back. It must be called once.
func (t *Spare) Release() {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spares, t)
	s.busy--
	s.grant()
}

// wantSpares asks for all spare slots. The caller holds mu.
func (s *Slots) wantSpares() {
	for spare := range s.spares {
		close(spare.wanted)
	}
	clear(s.spares)
}
