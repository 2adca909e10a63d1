-- Wireshark dissector of dgiwarp's datagram mapping: RDMAP and DDP over UDP (rfc-notes/datagram-mapping.md, "Datagram" below), and of its reliable
-- datagrams (rfc-notes/reliable-datagrams.md).
--
-- Put it into the folder for personal Lua plugins (Help, About, Folders), or name it: tshark -X lua_script:dgiwarp.lua
-- A datagram is taken for dgiwarp's if its CRC is right; from then on so is everything of its conversation. Ports that always are can be set in the
-- preferences of the protocol. For Wireshark 3.4 and later, whichever Lua it has.

local dgiwarp = Proto("dgiwarp", "dgiwarp datagram (RDMAP/DDP over UDP)")

-- Exclusive or, and the three that a CRC needs, of unsigned 32 bits: under three names, by version of Lua.
local bxor, band, rshift
if bit32 then
    bxor, band, rshift = bit32.bxor, bit32.band, bit32.rshift
elseif _VERSION == "Lua 5.1" and bit then
    bxor = function(a, b) return bit.bxor(a, b) % 4294967296 end
    band = function(a, b) return bit.band(a, b) % 4294967296 end
    rshift = function(a, n) return bit.rshift(a, n) % 4294967296 end
else
    bxor = load("return function(a, b) return a ~ b end")()
    band = load("return function(a, b) return a & b end")()
    rshift = load("return function(a, n) return a >> n end")()
end

local OPCODES = {
    [1] = "RDMA Read Request", [2] = "RDMA Read Response", [3] = "Send", [5] = "Send with Solicited Event",
    [7] = "Terminate", [12] = "Write-Record", [13] = "Segmented Send",
}
local FORMATS = {
    [0] = "Segment", [1] = "Segment with a cookie", [2] = "Cookie exchange", [3] = "Service lookup",
    [4] = "Reliable datagram", [5] = "Reserved for encrypted datagrams",
}
local FRAMES = {
    [0] = "PAD", [1] = "SEGMENT", [2] = "ACK", [3] = "PLACED", [4] = "CREDIT", [5] = "RNR", [6] = "ERROR", [7] = "HELLO", [8] = "PING", [9] = "PONG",
    [10] = "CLOSE",
}
local REASONS = { [1] = "Done", [2] = "Unknown association", [3] = "Violation", [4] = "A message failed" }
-- What a segment of a reliable message may be, beside opcodes of datagrams.
local RELIABLE = {
    [0] = "RDMA Write", [1] = "RDMA Read Request", [2] = "RDMA Read Response", [3] = "Send", [4] = "Send with Invalidate", [5] = "Send with Solicited Event",
    [6] = "Send with Solicited Event and Invalidate", [8] = "Immediate Data", [9] = "Immediate Data with Solicited Event", [10] = "Atomic Request",
    [11] = "Atomic Response",
}
local EXCHANGES = { [1] = "Request", [2] = "Answer", [3] = "Invitation" }
local SERVICES = { [1] = "Lookup", [2] = "Answer", [3] = "Reject", [4] = "Waiting", [5] = "Port query", [6] = "Port answer" }
local LAYERS = { [0] = "RDMA", [1] = "DDP", [2] = "LLP" }
local STATUSES = { [0] = "Bad", [1] = "Good", [2] = "Unverified" }

local READ_REQUEST, READ_RESPONSE, SEND, SEND_SE, TERMINATE, WRITE_RECORD, SEGMENTED_SEND = 1, 2, 3, 5, 7, 12, 13
-- Queue by opcode; those without one are tagged.
local QUEUES = { [READ_REQUEST] = 1, [SEND] = 0, [SEND_SE] = 0, [TERMINATE] = 2, [SEGMENTED_SEND] = 0 }

local f = {
    t = ProtoField.bool("dgiwarp.t", "Tagged flag", 8, nil, 0x80),
    l = ProtoField.bool("dgiwarp.l", "Last flag", 8, nil, 0x40),
    format = ProtoField.uint8("dgiwarp.format", "Format", base.DEC, FORMATS, 0x3c),
    dv = ProtoField.uint8("dgiwarp.dv", "DDP version (DV)", base.DEC, nil, 0x03),
    rv = ProtoField.uint8("dgiwarp.rv", "RDMAP version (RV)", base.DEC, nil, 0xc0),
    rsv = ProtoField.uint8("dgiwarp.rsv", "Reserved", base.HEX, nil, 0x30),
    opcode = ProtoField.uint8("dgiwarp.opcode", "Opcode", base.DEC, OPCODES, 0x0f),
    stag = ProtoField.uint32("dgiwarp.stag", "STag", base.HEX),
    to = ProtoField.uint64("dgiwarp.to", "Tagged Offset (TO)", base.HEX),
    qkey = ProtoField.uint32("dgiwarp.qkey", "Q_Key", base.HEX),
    sender_epoch = ProtoField.uint32("dgiwarp.sender_epoch", "Sender's epoch", base.HEX),
    qn = ProtoField.uint32("dgiwarp.qn", "Queue Number (QN)", base.DEC),
    msn = ProtoField.uint32("dgiwarp.msn", "Message Sequence Number (MSN)", base.DEC),
    mo = ProtoField.uint32("dgiwarp.mo", "Message Offset (MO)", base.DEC),
    ext = ProtoField.none("dgiwarp.ext", "Extension"),
    flag_i = ProtoField.bool("dgiwarp.ext.i", "Immediate is valid (I)", 8, nil, 0x01),
    flag_s = ProtoField.bool("dgiwarp.ext.s", "Solicited event (S)", 8, nil, 0x02),
    flag_w = ProtoField.bool("dgiwarp.ext.w", "UC Write (W)", 8, nil, 0x04),
    flag_others = ProtoField.uint8("dgiwarp.ext.flags_reserved", "Reserved flags", base.HEX, nil, 0xf8),
    ext_reserved = ProtoField.uint24("dgiwarp.ext.reserved", "Reserved", base.HEX),
    epoch = ProtoField.uint32("dgiwarp.ext.epoch", "Epoch", base.HEX),
    number = ProtoField.uint32("dgiwarp.ext.number", "Message number", base.DEC),
    length = ProtoField.uint32("dgiwarp.ext.length", "Message length", base.DEC),
    offset = ProtoField.uint32("dgiwarp.ext.offset", "Message offset", base.DEC),
    immediate = ProtoField.uint32("dgiwarp.ext.immediate", "Immediate", base.HEX),
    cookie = ProtoField.uint64("dgiwarp.cookie", "Cookie", base.HEX),
    token = ProtoField.bytes("dgiwarp.token", "Token"),
    payload = ProtoField.bytes("dgiwarp.payload", "Payload"),
    payload_length = ProtoField.uint32("dgiwarp.payload_length", "Payload length", base.DEC),
    sink_stag = ProtoField.uint32("dgiwarp.read.sink_stag", "Data Sink STag", base.HEX),
    sink_to = ProtoField.uint64("dgiwarp.read.sink_to", "Data Sink Tagged Offset", base.HEX),
    size = ProtoField.uint32("dgiwarp.read.size", "RDMA Read Message Size", base.DEC),
    source_stag = ProtoField.uint32("dgiwarp.read.source_stag", "Data Source STag", base.HEX),
    source_to = ProtoField.uint64("dgiwarp.read.source_to", "Data Source Tagged Offset", base.HEX),
    layer = ProtoField.uint8("dgiwarp.term.layer", "Layer", base.DEC, LAYERS, 0xf0),
    etype = ProtoField.uint8("dgiwarp.term.etype", "Error type", base.DEC, nil, 0x0f),
    code = ProtoField.uint8("dgiwarp.term.code", "Error code", base.HEX),
    m = ProtoField.bool("dgiwarp.term.m", "DDP Segment Length valid (M)", 8, nil, 0x80),
    d = ProtoField.bool("dgiwarp.term.d", "Extension included (D)", 8, nil, 0x40),
    r = ProtoField.bool("dgiwarp.term.r", "Read Request included (R)", 8, nil, 0x20),
    term_reserved = ProtoField.uint16("dgiwarp.term.reserved", "Reserved", base.HEX, nil, 0x1fff),
    exchange = ProtoField.uint8("dgiwarp.exchange.type", "Type", base.DEC, EXCHANGES),
    exchange_epoch = ProtoField.uint32("dgiwarp.exchange.epoch", "Requester's epoch", base.HEX),
    nonce = ProtoField.uint64("dgiwarp.exchange.nonce", "Nonce", base.HEX),
    reserved = ProtoField.bytes("dgiwarp.reserved", "Reserved"),
    service = ProtoField.uint8("dgiwarp.service.type", "Type", base.DEC, SERVICES),
    status = ProtoField.uint16("dgiwarp.service.status", "Status", base.DEC),
    transaction = ProtoField.uint64("dgiwarp.service.transaction", "Transaction", base.HEX),
    port = ProtoField.uint16("dgiwarp.service.port", "Port", base.DEC),
    private_length = ProtoField.uint16("dgiwarp.service.length", "Length", base.DEC),
    qpn = ProtoField.uint32("dgiwarp.service.qpn", "QPN", base.HEX),
    service_qkey = ProtoField.uint32("dgiwarp.service.qkey", "Q_Key", base.HEX),
    private_data = ProtoField.bytes("dgiwarp.service.private_data", "Private data"),
    eager = ProtoField.bool("dgiwarp.rd.eager", "Eager", 8, nil, 0x01),
    hello = ProtoField.bool("dgiwarp.rd.hello", "Hello", 8, nil, 0x02),
    association = ProtoField.uint32("dgiwarp.rd.association", "Association", base.HEX),
    packet = ProtoField.uint64("dgiwarp.rd.packet", "Packet number", base.DEC),
    time = ProtoField.uint32("dgiwarp.rd.time", "Time in µs", base.DEC),
    rd_epoch = ProtoField.uint32("dgiwarp.rd.epoch", "Epoch", base.HEX),
    frame = ProtoField.uint8("dgiwarp.frame.type", "Type", base.DEC, FRAMES),
    frame_flags = ProtoField.uint8("dgiwarp.frame.flags", "Flags", base.HEX),
    frame_length = ProtoField.uint16("dgiwarp.frame.length", "Length", base.DEC),
    seg_last = ProtoField.bool("dgiwarp.segment.last", "Last of its message", 8, nil, 0x01),
    seg_receive = ProtoField.bool("dgiwarp.segment.receive", "Consumes a receive", 8, nil, 0x02),
    seg_number = ProtoField.uint32("dgiwarp.segment.number", "Segment number", base.DEC),
    seg_message = ProtoField.uint32("dgiwarp.segment.message", "Message number", base.DEC),
    seg_index = ProtoField.uint32("dgiwarp.segment.index", "Index", base.DEC),
    seg_stream = ProtoField.uint16("dgiwarp.segment.stream", "Stream", base.DEC),
    seg_after = ProtoField.uint16("dgiwarp.segment.after", "After", base.DEC),
    seg_opcode = ProtoField.uint8("dgiwarp.segment.opcode", "Opcode", base.DEC, RELIABLE, 0x0f),
    seg_stag = ProtoField.uint32("dgiwarp.segment.stag", "STag", base.HEX),
    seg_to = ProtoField.uint64("dgiwarp.segment.to", "Tagged Offset (TO)", base.HEX),
    seg_word = ProtoField.uint32("dgiwarp.segment.word", "RsvdULP: Q_Key, or STag to invalidate", base.HEX),
    seg_qn = ProtoField.uint32("dgiwarp.segment.qn", "Queue Number (QN)", base.DEC),
    seg_msn = ProtoField.uint32("dgiwarp.segment.msn", "Message Sequence Number (MSN)", base.DEC),
    seg_mo = ProtoField.uint32("dgiwarp.segment.mo", "Message Offset (MO)", base.DEC),
    seg_payload = ProtoField.bytes("dgiwarp.segment.payload", "Payload"),
    ack_largest = ProtoField.uint64("dgiwarp.ack.largest", "Largest packet number", base.DEC),
    ack_delay = ProtoField.uint32("dgiwarp.ack.delay", "Delay in µs", base.DEC),
    ack_echo = ProtoField.uint32("dgiwarp.ack.echo", "Echo of the time", base.DEC),
    ack_first = ProtoField.uint32("dgiwarp.ack.first", "Numbers below it in its range", base.DEC),
    ack_gap = ProtoField.uint32("dgiwarp.ack.gap", "Gap", base.DEC),
    ack_length = ProtoField.uint32("dgiwarp.ack.length", "Numbers below the end of the range", base.DEC),
    ack_ect0 = ProtoField.uint32("dgiwarp.ack.ect0", "ECT(0)", base.DEC),
    ack_ect1 = ProtoField.uint32("dgiwarp.ack.ect1", "ECT(1)", base.DEC),
    ack_ce = ProtoField.uint32("dgiwarp.ack.ce", "CE", base.DEC),
    placed_next = ProtoField.uint32("dgiwarp.placed.next", "Segments before this one are placed", base.DEC),
    placed_map = ProtoField.uint64("dgiwarp.placed.map", "Segments behind it", base.HEX),
    receives = ProtoField.uint32("dgiwarp.credit.receives", "Receives", base.DEC),
    window = ProtoField.uint32("dgiwarp.credit.window", "Window", base.DEC),
    rnr_packet = ProtoField.uint64("dgiwarp.rnr.packet", "Packet number", base.DEC),
    rnr_message = ProtoField.uint32("dgiwarp.rnr.message", "Message number", base.DEC),
    rnr_delay = ProtoField.uint32("dgiwarp.rnr.delay", "Delay in µs", base.DEC),
    error_message = ProtoField.uint32("dgiwarp.error.message", "Message number", base.DEC),
    error_control = ProtoField.uint32("dgiwarp.error.control", "Terminate Control", base.HEX),
    hello_version = ProtoField.uint8("dgiwarp.hello.version", "Version", base.DEC),
    hello_features = ProtoField.uint8("dgiwarp.hello.features", "Features", base.HEX),
    hello_retry = ProtoField.bool("dgiwarp.hello.retry", "Retry", 8, nil, 0x01),
    hello_association = ProtoField.uint32("dgiwarp.hello.association", "Association of the sender", base.HEX),
    proof = ProtoField.uint64("dgiwarp.hello.proof", "Proof", base.HEX),
    hello_cookie = ProtoField.uint64("dgiwarp.hello.cookie", "Cookie", base.HEX),
    ping = ProtoField.uint64("dgiwarp.ping", "Data", base.HEX),
    close_reason = ProtoField.uint32("dgiwarp.close.reason", "Reason", base.DEC, REASONS),
    close_association = ProtoField.uint32("dgiwarp.close.association", "Association", base.HEX),
    close_packet = ProtoField.uint64("dgiwarp.close.packet", "Packet number", base.DEC),
    crc = ProtoField.uint32("dgiwarp.crc", "CRC32c", base.HEX),
    crc_status = ProtoField.uint8("dgiwarp.crc.status", "CRC32c status", base.DEC, STATUSES),
    first_frame = ProtoField.framenum("dgiwarp.message.first_frame", "First segment of this message in frame", base.NONE),
    so_far = ProtoField.uint32("dgiwarp.message.octets", "Octets of this message up to here", base.DEC),
    complete = ProtoField.bool("dgiwarp.message.complete", "Message complete"),
    train = ProtoField.uint32("dgiwarp.train", "Datagrams of a train, cut by the kernel later", base.DEC),
}
dgiwarp.fields = f

local e = {
    crc = ProtoExpert.new("dgiwarp.crc.bad", "Bad CRC32c", expert.group.CHECKSUM, expert.severity.ERROR),
    reserved = ProtoExpert.new("dgiwarp.reserved.set", "Reserved bits are not zero", expert.group.PROTOCOL, expert.severity.WARN),
    malformed = ProtoExpert.new("dgiwarp.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR),
    unknown = ProtoExpert.new("dgiwarp.unknown", "Unknown format, version or opcode", expert.group.PROTOCOL, expert.severity.WARN),
    message = ProtoExpert.new("dgiwarp.message.note", "Message complete", expert.group.REASSEMBLE, expert.severity.CHAT),
}
dgiwarp.experts = e

dgiwarp.prefs.ports = Pref.range("UDP ports", "", "Ports that are always dgiwarp's, whatever their CRCs", 65535)
dgiwarp.prefs.check_crc = Pref.bool("Check CRCs", true, "Whether CRCs of datagrams are checked that are dgiwarp's by port or conversation")

-- CRC32c (RFC 3720 B.4), reflected.
local CRC = {}
for octet = 0, 255 do
    local value = octet
    for _ = 1, 8 do
        if value % 2 == 1 then
            value = bxor(rshift(value, 1), 0x82f63b78)
        else
            value = rshift(value, 1)
        end
    end
    CRC[octet] = value
end

local ALL_ONES = 4294967295
local SHORTEST = 18

-- Whether the last four octets of data, from first to last (counted from 1), are the CRC of those before.
local function is_right(data, first, last)
    if last - first + 1 < SHORTEST then
        return false
    end
    local sum = ALL_ONES
    for at = first, last - 4 do
        sum = bxor(CRC[band(bxor(sum, data:byte(at)), 255)], rshift(sum, 8))
    end
    local a, b, c, d = data:byte(last - 3, last)
    return bxor(sum, ALL_ONES) == a + b * 256 + c * 65536 + d * 16777216
end

-- The length of a train's datagrams, if data is one that was recorded before the kernel cut it; all but the last have this length.
local function train_of(data)
    local sum, all = ALL_ONES, #data
    for size = SHORTEST, all - SHORTEST do
        local from = size == SHORTEST and 1 or size - 4
        for at = from, size - 4 do
            sum = bxor(CRC[band(bxor(sum, data:byte(at)), 255)], rshift(sum, 8))
        end
        local a, b, c, d = data:byte(size - 3, size)
        if bxor(sum, ALL_ONES) == a + b * 256 + c * 65536 + d * 16777216 then
            local good = true
            for first = 1 + size, all, size do
                good = good and is_right(data, first, math.min(first + size - 1, all))
            end
            if good then
                return size
            end
        end
    end
    return nil
end

-- Messages of several segments: by source, destination, epoch and number. Filled once, in the order of the file.
local messages, progress = {}, {}

function dgiwarp.init()
    messages, progress = {}, {}
end

local function note_message(tree, pinfo, at, extension, octets)
    local key = table.concat({
        tostring(pinfo.src), pinfo.src_port, tostring(pinfo.dst), pinfo.dst_port, extension.epoch, extension.number,
    }, " ")
    local here = pinfo.number .. " " .. at
    if not pinfo.visited and not progress[here] then
        local message = messages[key]
        if not message then
            message = { first = pinfo.number, octets = 0, seen = {} }
            messages[key] = message
        end
        -- The network may bring a segment twice.
        if not message.seen[extension.offset] then
            message.seen[extension.offset] = true
            message.octets = message.octets + octets
        end
        progress[here] = { first = message.first, octets = message.octets }
    end
    local so_far = progress[here]
    if not so_far then
        return
    end
    tree:add(f.first_frame, so_far.first):set_generated()
    tree:add(f.so_far, so_far.octets):set_generated()
    local complete = so_far.octets >= extension.length
    local item = tree:add(f.complete, complete)
    item:set_generated()
    if complete then
        item:add_proto_expert_info(e.message, string.format("Message %u: %u octets, all of them up to here", extension.number, extension.length))
    end
end

local function malformed(tree, why)
    tree:add_proto_expert_info(e.malformed, why)
    return why
end

local function add_read_request(tree, tvb)
    tree:add(f.sink_stag, tvb(0, 4))
    tree:add(f.sink_to, tvb(4, 8))
    tree:add(f.size, tvb(12, 4))
    tree:add(f.source_stag, tvb(16, 4))
    tree:add(f.source_to, tvb(20, 8))
    return string.format("%u octets from STag %#x to STag %#x", tvb(12, 4):uint(), tvb(16, 4):uint(), tvb(0, 4):uint())
end

local function add_extension(tree, tvb)
    local sub = tree:add(f.ext, tvb(0, 24))
    sub:add(f.flag_i, tvb(0, 1))
    sub:add(f.flag_s, tvb(0, 1))
    sub:add(f.flag_w, tvb(0, 1))
    local others = sub:add(f.flag_others, tvb(0, 1))
    local reserved = sub:add(f.ext_reserved, tvb(1, 3))
    local flags = tvb(0, 1):uint()
    if flags > 7 then
        others:add_proto_expert_info(e.reserved)
    end
    if tvb(1, 3):uint() ~= 0 then
        reserved:add_proto_expert_info(e.reserved)
    end
    sub:add(f.epoch, tvb(4, 4))
    sub:add(f.number, tvb(8, 4))
    sub:add(f.length, tvb(12, 4))
    sub:add(f.offset, tvb(16, 4))
    local immediate = sub:add(f.immediate, tvb(20, 4))
    if flags % 2 == 0 and tvb(20, 4):uint() ~= 0 then
        immediate:add_proto_expert_info(e.reserved, "An immediate without flag I is not zero")
    end
    local extension = {
        flags = flags, epoch = tvb(4, 4):uint(), number = tvb(8, 4):uint(), length = tvb(12, 4):uint(), offset = tvb(16, 4):uint(),
    }
    sub:append_text(string.format(": message %u, octets %u of %u", extension.number, extension.offset, extension.length))
    return extension, sub
end

local function add_terminate(tree, tvb)
    local all = tvb:len()
    if all < 4 then
        return malformed(tree, "A Terminate without a control field")
    end
    tree:add(f.layer, tvb(0, 1))
    tree:add(f.etype, tvb(0, 1))
    tree:add(f.code, tvb(1, 1))
    tree:add(f.m, tvb(2, 1))
    tree:add(f.d, tvb(2, 1))
    tree:add(f.r, tvb(2, 1))
    local reserved = tree:add(f.term_reserved, tvb(2, 2))
    if tvb(2, 2):uint() % 0x2000 ~= 0 then
        reserved:add_proto_expert_info(e.reserved)
    end
    local bits = rshift(tvb(2, 1):uint(), 5) % 4
    local text = string.format("%u/%u/%02x", rshift(tvb(0, 1):uint(), 4), tvb(0, 1):uint() % 16, tvb(1, 1):uint())
    if bits == 1 and all == 32 then
        add_read_request(tree, tvb(4, 28):tvb())
    elseif bits == 2 and all == 28 then
        add_extension(tree, tvb(4, 24):tvb())
    else
        malformed(tree, "A Terminate about neither a Read Request nor a message")
    end
    return text
end

-- Checks of Datagram §3; gives what is wrong.
local function check_extension(extension, last, octets, place)
    local behind = extension.offset + octets
    if extension.length > 1073741824 then
        return "A message longer than 2^30 octets"
    elseif behind > extension.length then
        return "Octets beyond the end of the message"
    elseif last ~= (behind == extension.length) then
        return "L is not that of the end of the message"
    elseif octets == 0 and extension.length > 0 then
        return "No payload of a message that has some"
    elseif place and (place.msn ~= extension.number or place.mo ~= extension.offset) then
        return "MSN or MO differ from the extension"
    end
    return nil
end

local function add_payload(tree, tvb, opcode)
    local octets = tvb and tvb:len() or 0
    if opcode == READ_REQUEST then
        if octets ~= 28 then
            return malformed(tree, "A Read Request not of 28 octets")
        end
        return add_read_request(tree, tvb)
    elseif opcode == TERMINATE then
        if not tvb then
            return malformed(tree, "A Terminate without a control field")
        end
        return add_terminate(tree, tvb)
    end
    tree:add(f.payload_length, octets):set_generated()
    if octets > 0 then
        tree:add(f.payload, tvb())
    end
    return string.format("%u octets", octets)
end

-- A segment without its CRC; gives what the list of packets says of it.
local function add_segment(tree, pinfo, tvb, format)
    local all = tvb:len()
    local first, control = tvb(0, 1):uint(), tvb(1, 1):uint()
    tree:add(f.rv, tvb(1, 1))
    local rsv = tree:add(f.rsv, tvb(1, 1))
    if rshift(control, 4) % 4 ~= 0 then
        rsv:add_proto_expert_info(e.reserved)
    end
    tree:add(f.opcode, tvb(1, 1))
    local opcode, tagged, last = control % 16, first >= 128, rshift(first, 6) % 2 == 1
    local name = OPCODES[opcode]
    if not name or rshift(control, 6) ~= 1 then
        tree:add_proto_expert_info(e.unknown)
        return string.format("opcode %u, RV %u", opcode, rshift(control, 6))
    end
    local queue = QUEUES[opcode]
    if tagged == (queue ~= nil) then
        return malformed(tree, "T is not that of the opcode")
    end
    local extended = opcode == WRITE_RECORD or opcode == SEGMENTED_SEND
    local header = tagged and 14 or 18
    local at = header + (extended and 24 or 0) + (format == 1 and 8 or 0)
    if all < at then
        return malformed(tree, "Shorter than its headers")
    end
    local place
    local where
    if tagged then
        tree:add(f.stag, tvb(2, 4))
        tree:add(f.to, tvb(6, 8))
        where = string.format("STag %#x", tvb(2, 4):uint())
    else
        place = { qn = tvb(6, 4):uint(), msn = tvb(10, 4):uint(), mo = tvb(14, 4):uint() }
        tree:add(queue == 0 and f.qkey or f.sender_epoch, tvb(2, 4))
        tree:add(f.qn, tvb(6, 4))
        tree:add(f.msn, tvb(10, 4))
        tree:add(f.mo, tvb(14, 4))
        where = string.format("MSN %u", place.msn)
        if place.qn ~= queue then
            return malformed(tree, "Another queue than that of the opcode")
        end
        if not extended and (not last or place.mo ~= 0) then
            return malformed(tree, "L clear, or an MO, without an extension")
        end
    end
    local extension, sub
    if extended then
        extension, sub = add_extension(tree, tvb(header, 24):tvb())
        if opcode == WRITE_RECORD and rshift(extension.flags, 2) % 2 == 1 then
            name = "UC Write"
        end
        where = string.format("%s, message %u, offset %u of %u", where, extension.number, extension.offset, extension.length)
    end
    if format == 1 then
        tree:add(f.cookie, tvb(at - 8, 8))
    end
    local octets = all - at
    local text = add_payload(tree, octets > 0 and tvb(at):tvb() or nil, opcode)
    if extended then
        local wrong = check_extension(extension, last, octets, place)
        if wrong then
            malformed(sub, wrong)
        elseif extension.length > octets then
            note_message(sub, pinfo, tvb:offset(), extension, octets)
        end
    end
    return string.format("%s, %s, %s", name, where, text)
end

local function add_exchange(tree, tvb)
    if tvb:len() ~= 32 or tvb(0, 1):uint() ~= 0x49 then
        return malformed(tree, "A cookie exchange has 36 octets, T clear and L set")
    end
    tree:add(f.exchange, tvb(1, 1))
    local reserved = tree:add(f.reserved, tvb(2, 2))
    local kind = tvb(1, 1):uint()
    if kind == 3 then
        if tvb:raw(4, 4) ~= "DGiH" then
            return malformed(tree, "The type of a cookie exchange")
        end
        tree:add(f.token, tvb(8, 16))
        return "Invitation to share memory"
    end
    tree:add(f.exchange_epoch, tvb(4, 4))
    tree:add(f.nonce, tvb(8, 8))
    tree:add(f.cookie, tvb(16, 8))
    tree:add(f.reserved, tvb(24, 8))
    local zeros = string.rep("\0", 8)
    if tvb(2, 2):uint() ~= 0 or tvb:raw(24, 8) ~= zeros or kind == 1 and tvb:raw(16, 8) ~= zeros then
        reserved:add_proto_expert_info(e.reserved, "Reserved octets, or the cookie of a request, are not zero")
    end
    if not EXCHANGES[kind] then
        return malformed(tree, "The type of a cookie exchange")
    end
    return "Cookie " .. EXCHANGES[kind]:lower()
end

local function add_service(tree, tvb)
    local all = tvb:len()
    if all < 24 or tvb(0, 1):uint() ~= 0x4d then
        return malformed(tree, "A service lookup has 28 octets or more, T clear and L set")
    end
    tree:add(f.service, tvb(1, 1))
    tree:add(f.status, tvb(2, 2))
    tree:add(f.transaction, tvb(4, 8))
    tree:add(f.port, tvb(12, 2))
    tree:add(f.private_length, tvb(14, 2))
    tree:add(f.qpn, tvb(16, 4))
    tree:add(f.service_qkey, tvb(20, 4))
    local kind, length = tvb(1, 1):uint(), tvb(14, 2):uint()
    if length > 256 or 24 + length > all or kind == 1 and all ~= 280 or (kind == 5 or kind == 6) and all ~= 24 then
        return malformed(tree, "The length of a service lookup, or of its private data")
    end
    if length > 0 then
        tree:add(f.private_data, tvb(24, length))
    end
    if not SERVICES[kind] then
        tree:add_proto_expert_info(e.unknown)
        return string.format("Service type %u", kind)
    end
    return string.format("Service %s, port %u", SERVICES[kind]:lower(), tvb(12, 2):uint())
end

-- Octets of the body of each type of frame; those of SEGMENT and ACK vary.
local BODIES = { [3] = 12, [4] = 8, [5] = 16, [6] = 8, [7] = 32, [8] = 8, [9] = 8, [10] = 16 }

-- A DDP segment of a reliable message.
local function add_reliable_segment(tree, flags_tvb, tvb)
    tree:add(f.seg_last, flags_tvb)
    tree:add(f.seg_receive, flags_tvb)
    tree:add(f.seg_number, tvb(0, 4))
    tree:add(f.seg_message, tvb(4, 4))
    tree:add(f.seg_index, tvb(8, 4))
    tree:add(f.seg_stream, tvb(12, 2))
    tree:add(f.seg_after, tvb(14, 2))
    local all = tvb:len() - 16
    local tagged = tvb(16, 1):uint() >= 128
    local header = tagged and 14 or 18
    tree:add(f.seg_opcode, tvb(17, 1))
    local opcode = tvb(17, 1):uint() % 16
    local name = RELIABLE[opcode]
    if not name then
        tree:add_proto_expert_info(e.unknown)
        name = string.format("opcode %u", opcode)
    end
    if all < header then
        return malformed(tree, "Shorter than its headers")
    end
    if tagged then
        tree:add(f.seg_stag, tvb(18, 4))
        tree:add(f.seg_to, tvb(22, 8))
    else
        tree:add(f.seg_word, tvb(18, 4))
        tree:add(f.seg_qn, tvb(22, 4))
        tree:add(f.seg_msn, tvb(26, 4))
        tree:add(f.seg_mo, tvb(30, 4))
    end
    if all > header then
        tree:add(f.seg_payload, tvb(16 + header))
    end
    return string.format("%s, message %u, index %u, %u octets", name, tvb(4, 4):uint(), tvb(8, 4):uint(), all - header)
end

-- An acknowledgement.
local function add_ack(tree, flags, tvb)
    local all = tvb:len()
    local tail = flags % 2 == 1 and 12 or 0
    local further = all - 20 - tail
    if further < 0 or further % 8 ~= 0 or further > 31 * 8 then
        return malformed(tree, "An ACK not of whole ranges")
    end
    tree:add(f.ack_largest, tvb(0, 8))
    tree:add(f.ack_delay, tvb(8, 4))
    tree:add(f.ack_echo, tvb(12, 4))
    tree:add(f.ack_first, tvb(16, 4))
    for at = 20, 20 + further - 8, 8 do
        tree:add(f.ack_gap, tvb(at, 4))
        tree:add(f.ack_length, tvb(at + 4, 4))
    end
    if tail > 0 then
        tree:add(f.ack_ect0, tvb(all - 12, 4))
        tree:add(f.ack_ect1, tvb(all - 8, 4))
        tree:add(f.ack_ce, tvb(all - 4, 4))
    end
    return string.format("ACK %s", tostring(tvb(0, 8):uint64()))
end

-- The body of a frame; gives what the list of packets says of it.
local function add_frame(tree, kind, flags_tvb, tvb)
    local flags = flags_tvb:uint()
    if kind == 1 then
        if tvb:len() < 18 then
            return malformed(tree, "Shorter than its headers")
        end
        return add_reliable_segment(tree, flags_tvb, tvb)
    elseif kind == 2 then
        return add_ack(tree, flags, tvb)
    elseif tvb:len() ~= BODIES[kind] then
        return malformed(tree, "Another length than that of its type")
    elseif kind == 3 then
        tree:add(f.placed_next, tvb(0, 4))
        tree:add(f.placed_map, tvb(4, 8))
    elseif kind == 4 then
        tree:add(f.receives, tvb(0, 4))
        tree:add(f.window, tvb(4, 4))
    elseif kind == 5 then
        tree:add(f.rnr_packet, tvb(0, 8))
        tree:add(f.rnr_message, tvb(8, 4))
        tree:add(f.rnr_delay, tvb(12, 4))
    elseif kind == 6 then
        tree:add(f.error_message, tvb(0, 4))
        tree:add(f.error_control, tvb(4, 4))
    elseif kind == 7 then
        tree:add(f.hello_retry, flags_tvb)
        tree:add(f.hello_version, tvb(0, 1))
        tree:add(f.hello_features, tvb(1, 1))
        tree:add(f.hello_association, tvb(4, 4))
        tree:add(f.receives, tvb(8, 4))
        tree:add(f.window, tvb(12, 4))
        tree:add(f.proof, tvb(16, 8))
        tree:add(f.hello_cookie, tvb(24, 8))
        if tvb(0, 1):uint() ~= 1 then
            tree:add_proto_expert_info(e.unknown)
        end
    elseif kind == 8 or kind == 9 then
        tree:add(f.ping, tvb(0, 8))
    else
        tree:add(f.close_reason, tvb(0, 4))
        tree:add(f.close_association, tvb(4, 4))
        tree:add(f.close_packet, tvb(8, 8))
    end
    return FRAMES[kind]
end

-- A reliable datagram without its CRC.
local function add_reliable(tree, tvb)
    local all = tvb:len()
    if all < 24 or tvb(0, 1):uint() ~= 0x51 then
        return malformed(tree, "A reliable datagram has 28 octets or more, T clear and L set")
    end
    tree:add(f.eager, tvb(1, 1))
    tree:add(f.hello, tvb(1, 1))
    tree:add(f.association, tvb(4, 4))
    tree:add(f.packet, tvb(8, 8))
    tree:add(f.time, tvb(16, 4))
    tree:add(f.rd_epoch, tvb(20, 4))
    local texts = { string.format("Packet %s", tostring(tvb(8, 8):uint64())) }
    local at = 24
    while at < all do
        if all - at < 4 or all - at - 4 < tvb(at + 2, 2):uint() then
            texts[#texts + 1] = malformed(tree, "A frame that goes beyond its datagram")
            break
        end
        local kind, length = tvb(at, 1):uint(), tvb(at + 2, 2):uint()
        local name = FRAMES[kind] or "Unknown"
        local sub = tree:add(dgiwarp, tvb(at, 4 + length), name)
        sub:add(f.frame, tvb(at, 1))
        sub:add(f.frame_flags, tvb(at + 1, 1))
        sub:add(f.frame_length, tvb(at + 2, 2))
        if not FRAMES[kind] then
            texts[#texts + 1] = malformed(sub, "A frame of an unknown type")
            break
        elseif kind ~= 0 then
            local body = length > 0 and tvb(at + 4, length):tvb() or nil
            local text = body and add_frame(sub, kind, tvb(at + 1, 1), body) or malformed(sub, "A frame without a body")
            sub:append_text(": " .. text)
            texts[#texts + 1] = text
        end
        at = at + 4 + length
    end
    return table.concat(texts, "; ")
end

-- One datagram; gives what the list of packets says of it.
local function add_datagram(tvb, pinfo, root, good)
    local tree = root:add(dgiwarp, tvb())
    local all = tvb:len()
    if all < SHORTEST then
        malformed(tree, "Shorter than any datagram")
        return "malformed"
    end
    tree:add(f.t, tvb(0, 1))
    tree:add(f.l, tvb(0, 1))
    tree:add(f.format, tvb(0, 1))
    tree:add(f.dv, tvb(0, 1))
    local first = tvb(0, 1):uint()
    local format = rshift(first, 2) % 16
    local inner = tvb(0, all - 4):tvb()
    local text
    if first % 4 ~= 1 or format > 4 then
        tree:add_proto_expert_info(e.unknown)
        text = string.format("format %u, DV %u", format, first % 4)
    elseif format == 2 then
        text = add_exchange(tree, inner)
    elseif format == 3 then
        text = add_service(tree, inner)
    elseif format == 4 then
        text = add_reliable(tree, inner)
    else
        text = add_segment(tree, pinfo, inner, format)
    end
    local crc = tree:add(f.crc, tvb(all - 4, 4), tvb(all - 4, 4):le_uint())
    tree:add(f.crc_status, good == nil and 2 or good and 1 or 0):set_generated()
    if good == false then
        crc:add_proto_expert_info(e.crc)
        text = text .. " [bad CRC]"
    end
    tree:append_text(": " .. text)
    return text
end

-- Dissects what a packet of UDP carries: a datagram, or a train of them.
local function dissect(tvb, pinfo, root, good, size)
    pinfo.cols.protocol = "dgiwarp"
    local all = tvb:len()
    if not size then
        pinfo.cols.info = add_datagram(tvb, pinfo, root, good)
        return all
    end
    local count = math.ceil(all / size)
    local text
    for at = 0, all - 1, size do
        text = add_datagram(tvb(at, math.min(size, all - at)):tvb(), pinfo, root, true)
    end
    root:add(f.train, count):set_generated()
    pinfo.cols.info = string.format("Train of %u, the last: %s", count, text)
    return all
end

function dgiwarp.dissector(tvb, pinfo, root)
    local all = tvb:len()
    if all == 0 or tvb:reported_len() ~= all then
        return 0
    end
    local good, size
    if dgiwarp.prefs.check_crc then
        local data = tvb:raw()
        good = is_right(data, 1, all)
        if not good then
            size = train_of(data)
        end
    end
    return dissect(tvb, pinfo, root, good, size)
end

local function heuristic(tvb, pinfo, root)
    local all = tvb:len()
    if all < SHORTEST or tvb:reported_len() ~= all then
        return false
    end
    local first = tvb(0, 1):uint()
    if first % 4 ~= 1 or rshift(first, 2) % 16 > 4 then
        return false
    end
    local data = tvb:raw()
    local good = is_right(data, 1, all)
    local size = not good and train_of(data) or nil
    if not good and not size then
        return false
    end
    -- Whatever else passes between these two ports is shown too, right or not.
    pinfo.conversation = dgiwarp
    dissect(tvb, pinfo, root, true, size)
    return true
end

dgiwarp:register_heuristic("udp", heuristic)

local udp_ports = DissectorTable.get("udp.port")
udp_ports:add_for_decode_as(dgiwarp)
local claimed = ""
function dgiwarp.prefs_changed()
    if claimed ~= dgiwarp.prefs.ports then
        if claimed ~= "" then
            udp_ports:remove(claimed, dgiwarp)
        end
        claimed = dgiwarp.prefs.ports
        if claimed ~= "" then
            udp_ports:add(claimed, dgiwarp)
        end
    end
end
