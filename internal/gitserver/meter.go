package gitserver

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Meter serves the repositories of a [Server] at an address of its own, over HTTP, and counts the bytes of its
// connections, in both directions and including headers.
type Meter struct {
	base    string
	http    http.Server
	bytes   atomic.Int64
	serving sync.WaitGroup
}

// StartMeter starts a meter. The caller must close it.
func (s *Server) StartMeter() (*Meter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &Meter{base: "http://" + listener.Addr().String()}
	m.http.BaseContext, m.http.Handler = s.http.BaseContext, http.HandlerFunc(s.serve)
	m.serving.Go(func() { _ = m.http.Serve(metered{listener, &m.bytes}) })
	return m, nil
}

// URL returns the clone URL of repo.
func (m *Meter) URL(repo string) string { return m.base + "/" + repo + ".git" }

// Take returns the number of bytes since the last call.
func (m *Meter) Take() int64 { return m.bytes.Swap(0) }

// Close closes all connections.
func (m *Meter) Close() {
	_ = m.http.Close()
	m.serving.Wait()
}

// metered counts what is read from and written to its connections.
type metered struct {
	net.Listener
	bytes *atomic.Int64
}

func (l metered) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return counted{conn, l.bytes}, err
}

type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p))) // before the reader can know
	return c.Conn.Write(p)
}
