// A client of NATS JetStream in Go: stormproof test --client "exec:./client" ... (docs/clients.md).
// A queue is a stream with one durable consumer.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

const consumer = "takers"
const answer = 2 * time.Second // how long a server may take to answer

type request struct {
	ID        int64   `json:"id"`
	Op        string  `json:"op"`
	Host      string  `json:"host"`
	Port      int     `json:"port"`
	Login     string  `json:"login"`
	Password  string  `json:"password"`
	Queue     string  `json:"queue"`
	Body      string  `json:"body"`
	Timeout   float64 `json:"timeout"`
	Delivery  int     `json:"delivery"`
	Addresses []any   `json:"addresses"`
	Names     struct {
		Queues []string `json:"queues"`
	} `json:"names"`
}

type client struct {
	connection *nats.Conn
	stream     nats.JetStreamContext
	servers    int
	pulls      map[string]*nats.Subscription
	deliveries map[int]*nats.Msg
	last       int
}

func (c *client) connect(r request) (err error) {
	c.servers = len(r.Addresses)
	url := "nats://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	// Without NoReconnect, the library would send again what it has sent before.
	c.connection, err = nats.Connect(url, nats.NoReconnect(), nats.Timeout(answer), nats.UserInfo(r.Login, r.Password))
	if err == nil {
		c.stream, err = c.connection.JetStream(nats.MaxWait(answer))
	}
	return err
}

func (c *client) prepare(r request) error {
	replicas := map[bool]int{true: 3, false: 1}[c.servers >= 3]
	for _, queue := range r.Names.Queues {
		stream := nats.StreamConfig{Name: queue, Subjects: []string{queue}, Retention: nats.WorkQueuePolicy, Replicas: replicas}
		if _, err := c.stream.AddStream(&stream); err != nil {
			return err
		}
		takers := nats.ConsumerConfig{Durable: consumer, AckPolicy: nats.AckExplicitPolicy, AckWait: 5 * time.Second}
		if _, err := c.stream.AddConsumer(queue, &takers); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) take(r request) (any, error) {
	if c.pulls[r.Queue] == nil {
		pull, err := c.stream.PullSubscribe(r.Queue, consumer, nats.Bind(r.Queue, consumer))
		if err != nil {
			return nil, err
		}
		c.pulls[r.Queue] = pull
	}
	found, err := c.pulls[r.Queue].Fetch(1, nats.MaxWait(time.Duration(r.Timeout*float64(time.Second))))
	if errors.Is(err, nats.ErrTimeout) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	c.last++
	c.deliveries[c.last] = found[0]
	return map[string]any{"delivery": c.last, "body": string(found[0].Data), "give_back": true}, nil
}

func (c *client) carryOut(r request) (any, error) {
	switch r.Op {
	case "connect":
		return nil, c.connect(r)
	case "prepare":
		return nil, c.prepare(r)
	case "send":
		_, err := c.stream.Publish(r.Queue, []byte(r.Body), nats.AckWait(answer), nats.RetryAttempts(0))
		return nil, err
	case "take":
		return c.take(r)
	case "ack":
		return nil, c.deliveries[r.Delivery].AckSync(nats.AckWait(answer))
	case "give_back":
		return nil, c.deliveries[r.Delivery].Nak()
	case "depth":
		info, err := c.stream.StreamInfo(r.Queue)
		if err != nil {
			return nil, err
		}
		return info.State.Msgs, nil
	case "close": // the end of this program closes the connection
		return nil, nil
	}
	return nil, fmt.Errorf("unknown request %q", r.Op)
}

// Nobody can have received it: the connection was refused, or no server has the stream (ADR-22 of NATS: no responders).
func certainlyNot(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, nats.ErrNoServers) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrNoStreamResponse)
}

func main() {
	c := &client{pulls: map[string]*nats.Subscription{}, deliveries: map[int]*nats.Msg{}}
	write := json.NewEncoder(os.Stdout).Encode // unbuffered
	write(map[string]any{"stormproof": 1, "can": []string{"queues", "prepare"}, "port": 4222, "prefetch": 1})
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		var r request
		if json.Unmarshal(line, &r) != nil {
			panic("no request: " + string(line))
		}
		if done, err := c.carryOut(r); err == nil {
			write(map[string]any{"id": r.ID, "ok": done})
		} else if certainlyNot(err) {
			write(map[string]any{"id": r.ID, "fail": err.Error()})
		} else {
			write(map[string]any{"id": r.ID, "error": err.Error()})
		}
	}
}
