package gitserver

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
)

// Meter forwards connections to a [Server] and counts their bytes, in both directions and including headers.
type Meter struct {
	listener net.Listener
	target   string
	bytes    atomic.Int64
	serving  sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
}

// StartMeter starts a meter. The caller must close it.
func (s *Server) StartMeter() (*Meter, error) {
	base, err := url.Parse(s.base)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &Meter{listener: listener, target: base.Host, conns: map[net.Conn]bool{}}
	m.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			m.serving.Go(func() { m.forward(conn) })
		}
	})
	return m, nil
}

// URL returns the clone URL of repo.
func (m *Meter) URL(repo string) string {
	return "http://" + m.listener.Addr().String() + "/" + repo + ".git"
}

// Take returns the number of bytes since the last call.
func (m *Meter) Take() int64 { return m.bytes.Swap(0) }

// Close closes all connections.
func (m *Meter) Close() {
	_ = m.listener.Close()
	m.mu.Lock()
	for conn := range m.conns {
		_ = conn.Close()
	}
	m.mu.Unlock()
	m.serving.Wait()
}

func (m *Meter) forward(client net.Conn) {
	server, err := net.Dial("tcp", m.target)
	if err != nil {
		_ = client.Close()
		return
	}
	m.mu.Lock()
	m.conns[client], m.conns[server] = true, true
	m.mu.Unlock()
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(counted{to, &m.bytes}, from)
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { pipe(server, client) })
	both.Go(func() { pipe(client, server) })
	both.Wait()
	m.mu.Lock()
	delete(m.conns, client)
	delete(m.conns, server)
	m.mu.Unlock()
}

// counted counts what is written.
type counted struct {
	io.Writer
	bytes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p))) // before the reader can know
	return c.Writer.Write(p)
}
