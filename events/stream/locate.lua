-- Whereabouts: tell where one entry stands with a group, and where what comes of it will be found.
--
-- KEYS    1 stream   2 stream of results
-- ARGV    1 group   2 entry id
-- Returns {where, last}
--         where: "queued"    in the stream, and not read by the group yet
--                "pending"   read, and not finished: in a consumer's hands, or parked
--                "finished"  read and finished, and still in the stream
--                "unknown"   not in the stream, or not any more
--         last: id of the last result at that moment, "0-0" if there is none
-- Refuses with WRONGTYPE when a key holds something else. Changes nothing.
local stream, results = KEYS[1], KEYS[2]
local group, id = ARGV[1], ARGV[2]

local last = redis.call('XREVRANGE', results, '+', '-', 'COUNT', 1)[1]
local function at(where) return {where, last and last[1] or '0-0'} end

local read = '0-0'
if redis.call('EXISTS', stream) == 1 then
  for _, info in ipairs(groups_of(stream)) do
    if info['name'] == group then
      read = info['last-delivered-id']
      if redis.call('XPENDING', stream, group, id, id, 1)[1] then return at('pending') end
    end
  end
end
if not redis.call('XRANGE', stream, id, id)[1] then return at('unknown') end
if precedes(read, id) then return at('queued') end
return at('finished')
