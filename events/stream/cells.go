package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Cells subscribes to the streams of several cells at once. The results of a repository that was moved from one cell to another come in
// order: those of the new cell are held until the group has acknowledged, in this process or another, what the repository has in the old
// one, or that is trimmed. Other repositories do not wait. Within one cell the order is that of its [Subscriber].
//
//	all, err := stream.NewCells(map[string]*stream.Subscriber{"eu-1": one, "eu-2": two})
//	if err != nil {
//		return err
//	}
//	messages, err := all.Subscribe(ctx, "results") // of each cell
//
// A held message is in flight: it counts in its Subscriber's window. Cells is a Watermill message.Subscriber, safe for concurrent use.
type Cells struct {
	members map[string]*Subscriber
	closing chan struct{}
	once    sync.Once
	running sync.WaitGroup

	mu     sync.Mutex
	passed map[string]string // last entry of a stream up to which nothing is left to acknowledge
}

// NewCells returns a subscriber over the subscribers of cells, by the cells' names. Each has the prefix of its cell, and all have one group.
// Close closes them, too.
func NewCells(members map[string]*Subscriber) (*Cells, error) {
	group := ""
	for name, member := range members {
		switch {
		case member == nil:
			return nil, fmt.Errorf("stream: NewCells got no Subscriber for cell %s", name)
		case group != "" && member.cfg.Group != group:
			return nil, fmt.Errorf("stream: NewCells got the groups %s and %s; want one", group, member.cfg.Group)
		}
		group = member.cfg.Group
	}
	if len(members) == 0 {
		return nil, errors.New("stream: NewCells needs a Subscriber at least")
	}
	return &Cells{members: members, closing: make(chan struct{}), passed: map[string]string{}}, nil
}

// Subscribe subscribes to the stream of each cell whose name is the cell's prefix and topic. It returns the errors of
// [Subscriber.Subscribe]. The channel is closed when ctx is done or Cells is closed.
func (c *Cells) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	inputs := make([]<-chan *message.Message, 0, len(c.members))
	for name, member := range c.members {
		input, err := member.Subscribe(ctx, member.cfg.Prefix+topic)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("cell %s: %w", name, err)
		}
		inputs = append(inputs, input)
	}
	merged := &merger{cells: c, out: make(chan *message.Message), held: map[string][]*message.Message{}}
	for _, input := range inputs {
		merged.running.Go(func() { merged.forward(input) })
	}
	c.running.Go(func() {
		defer cancel()
		merged.running.Wait()
		close(merged.out)
	})
	return merged.out, nil
}

// Close gives back the messages that are held, and closes the Subscribers, which grants handlers their grace period.
func (c *Cells) Close() error {
	c.once.Do(func() { close(c.closing) })
	errs := make([]error, 0, len(c.members))
	var mu sync.Mutex
	var closing sync.WaitGroup
	for _, member := range c.members {
		closing.Go(func() {
			err := member.Close()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	closing.Wait()
	c.running.Wait()
	return errors.Join(errs...)
}

// merger is one subscription of Cells.
type merger struct {
	cells   *Cells
	out     chan *message.Message
	running sync.WaitGroup

	mu   sync.Mutex
	held map[string][]*message.Message // by stream and repository, in order; there is an entry while a goroutine delivers them
}

// forward delivers the messages of one cell.
func (m *merger) forward(input <-chan *message.Message) {
	for msg := range input {
		follows, ok := events.ParseFollows(msg.Metadata.Get(MetadataFollows))
		if !ok || m.cells.hasPassed(follows) {
			m.deliver(msg)
			continue
		}
		result, err := events.ParseResult(msg.Payload)
		if err != nil { // not one of ours
			m.deliver(msg)
			continue
		}
		key := follows.String() + " " + result.Repo.Key()
		m.mu.Lock()
		waiting, holds := m.held[key]
		m.held[key] = append(waiting, msg)
		m.mu.Unlock()
		if !holds {
			m.running.Go(func() { m.release(key, follows, result.Repo.Key()) })
		}
	}
}

// deliver hands out a message. If nobody takes it before the end, it is redelivered, uncounted.
func (m *merger) deliver(msg *message.Message) {
	select {
	case m.out <- msg:
	case <-msg.Context().Done(): // the Subscriber gives it back
	case <-m.cells.closing:
		msg.Metadata.Set(MetadataUncounted, "true")
		msg.Nack()
	}
}

const (
	firstCheck = 50 * time.Millisecond
	lastCheck  = time.Second
)

// release delivers the messages held for a repository once its results in the old cell are acknowledged. Other processes acknowledge them,
// too, and Redis does not tell, so it asks.
func (m *merger) release(key string, follows events.Follows, repo string) {
	for pause := firstCheck; ; pause = min(2*pause, lastCheck) {
		done, err := m.cells.isDone(follows, repo)
		if done && err == nil {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-m.cells.closing:
		case <-m.first(key).Context().Done():
		}
		timer.Stop()
		m.giveBack(key)
		return
	}
	for {
		m.mu.Lock()
		waiting := m.held[key]
		if len(waiting) == 0 {
			delete(m.held, key)
			m.mu.Unlock()
			return
		}
		m.held[key] = waiting[1:]
		m.mu.Unlock()
		m.deliver(waiting[0])
	}
}

func (m *merger) first(key string) *message.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held[key][0]
}

// giveBack ends a hold: the messages are redelivered, uncounted.
func (m *merger) giveBack(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, msg := range m.held[key] {
		msg.Metadata.Set(MetadataUncounted, "true")
		msg.Nack()
	}
	delete(m.held, key)
}

// hasPassed reports whether nothing is left to acknowledge up to the entry, as far as is known without asking Redis.
func (c *Cells) hasPassed(follows events.Follows) bool {
	if c.members[follows.Cell] == nil {
		return true // this subscriber does not get the results of that cell
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := c.passed[follows.Stream]
	return passed != "" && !events.EntryAfter(follows.Entry, passed)
}

// isDone reports whether the group has acknowledged all results of a repository up to the entry that follows names.
func (c *Cells) isDone(follows events.Follows, repo string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	member := c.members[follows.Cell]
	client, group := member.cfg.Redis, member.cfg.Group
	groups, err := client.XInfoGroups(ctx, follows.Stream).Result()
	if err != nil {
		return noKey(err), ignoring(err, noKey(err))
	}
	read := ""
	for _, g := range groups {
		if g.Name == group {
			read = g.LastDeliveredID
		}
	}
	if read == "" || follows.Entry == "0-0" {
		return true, nil // nobody reads that stream, or there was nothing in it
	}
	if events.EntryAfter(follows.Entry, read) {
		unread, err := client.XRangeN(ctx, follows.Stream, "("+read, follows.Entry, 1).Result()
		if err != nil || len(unread) > 0 {
			return false, err
		}
	}
	mine, any, err := pendingUpTo(ctx, client, follows, group, repo)
	if err == nil && !any {
		c.mu.Lock()
		if events.EntryAfter(follows.Entry, c.passed[follows.Stream]) || c.passed[follows.Stream] == "" {
			c.passed[follows.Stream] = follows.Entry
		}
		c.mu.Unlock()
	}
	return err == nil && !mine, err
}

func ignoring(err error, ignore bool) error {
	if ignore {
		return nil
	}
	return err
}

const pendingPage = 100

// pendingUpTo reports whether entries up to the one that follows names are read and not acknowledged: of a repository, and any. Those that
// are trimmed, or cannot be decoded, are of none.
func pendingUpTo(ctx context.Context, client redis.UniversalClient, follows events.Follows, group, repo string) (mine, any bool, err error) {
	for from := "-"; ; {
		page, err := client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: follows.Stream, Group: group, Start: from, End: follows.Entry, Count: pendingPage}).Result()
		if err != nil {
			return false, any, err
		}
		for _, p := range page {
			entries, err := client.XRange(ctx, follows.Stream, p.ID, p.ID).Result()
			if err != nil {
				return false, any, err
			}
			any = any || len(entries) > 0
			if len(entries) > 0 && repoOf(entries[0].Values) == repo {
				return true, any, nil
			}
			from = "(" + p.ID
		}
		if len(page) < pendingPage {
			return false, any, nil
		}
	}
}

// repoOf returns the key of a result's repository, or "".
func repoOf(fields map[string]any) string {
	msg, err := unmarshal(unmarshaller{}, fields)
	if err != nil {
		return ""
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return ""
	}
	return result.Repo.Key()
}
